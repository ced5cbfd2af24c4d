fn is_nan_f32x4(x: vec4f) -> vec4<bool> {
    return (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) > vec4u(0x7f800000u);
}

fn at_least_f32x4(a: vec4f, b: vec4f) -> vec4f {
    return select(max(a, b), a, is_nan_f32x4(a));
}

// convolution: /convolution
@group(0) @binding(0) var<storage, read_write> x_0: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> w_0: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> b_0: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> r_0: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> out0_0: array<vec4f>;
@compute @workgroup_size(4, 16)
fn convolution(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let bx = i32(workgroup.x);
 let ty = i32(thread.y);
 let tx = i32(thread.x);
 let p = tx + (tx >> 1u) * 142;
 let p1 = ty * 8 + (ty >> 1u) * 4;
 let p2 = ty * 16 + tx;
 var r1 = vec4f();
 var r2 = vec4f();
 var r3 = vec4f();
 var r4 = vec4f();
 for (var k = 0; k < 3; k++) {
  let p3 = p + k * 48;
  let p4 = p1 + k * 20;
  for (var k1 = 0; k1 < 6; k1++) {
   let p5 = p3 + k1 * 8;
   let r5 = w_0[p5];
   let r10 = x_0[p4 + k1];
   r1 += r10.x * r5;
   let r11 = x_0[p4 + k1 + 2];
   r2 += r11.x * r5;
   let r12 = x_0[p4 + k1 + 4];
   r3 += r12.x * r5;
   let r13 = x_0[p4 + k1 + 6];
   r4 += r13.x * r5;
   let r6 = w_0[p5 + 2];
   r1 += r10.y * r6;
   r2 += r11.y * r6;
   r3 += r12.y * r6;
   r4 += r13.y * r6;
   let r7 = w_0[p5 + 4];
   r1 += r10.z * r7;
   r2 += r11.z * r7;
   r3 += r12.z * r7;
   r4 += r13.z * r7;
   let r8 = w_0[p5 + 6];
   r1 += r10.w * r8;
   r2 += r11.w * r8;
   r3 += r12.w * r8;
   r4 += r13.w * r8;
  }
 }
 let r9 = b_0[tx];
 out0_0[p2] = at_least_f32x4(r1 + r9 + r_0[p2], vec4f());
 out0_0[p2 + 4] = at_least_f32x4(r2 + r9 + r_0[p2 + 4], vec4f());
 out0_0[p2 + 8] = at_least_f32x4(r3 + r9 + r_0[p2 + 8], vec4f());
 out0_0[p2 + 12] = at_least_f32x4(r4 + r9 + r_0[p2 + 12], vec4f());
}
