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
@compute @workgroup_size(2, 16)
fn convolution(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let bx = i32(workgroup.x);
 let ty = i32(thread.y);
 let tx = i32(thread.x);
 let p = ty * 8 + (ty >> 1u) * 4;
 let p1 = tx * 144;
 let p2 = ty * 16 + tx * 2;
 var r1 = vec4f();
 var r2 = vec4f();
 var r3 = vec4f();
 var r4 = vec4f();
 var r5 = vec4f();
 var r6 = vec4f();
 var r7 = vec4f();
 var r8 = vec4f();
 for (var k = 0; k < 3; k++) {
  let p3 = p + k * 20;
  let p4 = p1 + k * 48;
  for (var k1 = 0; k1 < 3; k1++) {
   let p5 = p3 + k1 * 2;
   let p6 = p4 + k1 * 16;
   for (var k2 = 0; k2 < 2; k2++) {
    let p7 = p5 + k2;
    let r19 = x_0[p7];
    let r9 = w_0[p6 + k2 * 8];
    r1 += r19.x * r9;
    let r10 = w_0[p6 + k2 * 8 + 1];
    r2 += r19.x * r10;
    let r20 = x_0[p7 + 2];
    r3 += r20.x * r9;
    r4 += r20.x * r10;
    let r21 = x_0[p7 + 4];
    r5 += r21.x * r9;
    r6 += r21.x * r10;
    let r22 = x_0[p7 + 6];
    r7 += r22.x * r9;
    r8 += r22.x * r10;
    let r11 = w_0[p6 + k2 * 8 + 2];
    r1 += r19.y * r11;
    let r12 = w_0[p6 + k2 * 8 + 3];
    r2 += r19.y * r12;
    r3 += r20.y * r11;
    r4 += r20.y * r12;
    r5 += r21.y * r11;
    r6 += r21.y * r12;
    r7 += r22.y * r11;
    r8 += r22.y * r12;
    let r13 = w_0[p6 + k2 * 8 + 4];
    r1 += r19.z * r13;
    let r14 = w_0[p6 + k2 * 8 + 5];
    r2 += r19.z * r14;
    r3 += r20.z * r13;
    r4 += r20.z * r14;
    r5 += r21.z * r13;
    r6 += r21.z * r14;
    r7 += r22.z * r13;
    r8 += r22.z * r14;
    let r15 = w_0[p6 + k2 * 8 + 6];
    r1 += r19.w * r15;
    let r16 = w_0[p6 + k2 * 8 + 7];
    r2 += r19.w * r16;
    r3 += r20.w * r15;
    r4 += r20.w * r16;
    r5 += r21.w * r15;
    r6 += r21.w * r16;
    r7 += r22.w * r15;
    r8 += r22.w * r16;
   }
  }
 }
 let r17 = b_0[tx * 2];
 out0_0[p2] = at_least_f32x4(r1 + r17 + r_0[p2], vec4f());
 let r18 = b_0[tx * 2 + 1];
 out0_0[p2 + 1] = at_least_f32x4(r2 + r18 + r_0[p2 + 1], vec4f());
 out0_0[p2 + 4] = at_least_f32x4(r3 + r17 + r_0[p2 + 4], vec4f());
 out0_0[p2 + 5] = at_least_f32x4(r4 + r18 + r_0[p2 + 5], vec4f());
 out0_0[p2 + 8] = at_least_f32x4(r5 + r17 + r_0[p2 + 8], vec4f());
 out0_0[p2 + 9] = at_least_f32x4(r6 + r18 + r_0[p2 + 9], vec4f());
 out0_0[p2 + 12] = at_least_f32x4(r7 + r17 + r_0[p2 + 12], vec4f());
 out0_0[p2 + 13] = at_least_f32x4(r8 + r18 + r_0[p2 + 13], vec4f());
}
