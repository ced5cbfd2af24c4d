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
var<workgroup> conv_rf_0: array<vec4f, 64>;
@compute @workgroup_size(4, 2, 2)
fn convolution(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 var r10: vec4f;
 let bx = i32(workgroup.x);
 let tz = i32(thread.z);
 let ty = i32(thread.y);
 let tx = i32(thread.x);
 r10 = b_0[tx];
 let tz1 = i32(thread.z);
 let ty1 = i32(thread.y);
 let tx1 = i32(thread.x);
 let p = tx1 + (tx1 >> 1u) * 142 + tz1 * 24;
 let p1 = bx * 20 + ty1 * 8 + tz1 * 3;
 let p2 = ty1 * 16 + tx1 + tz1 * 32;
 var r2 = vec4f();
 var r3 = vec4f();
 var r4 = vec4f();
 var r5 = vec4f();
 for (var k = 0; k < 3; k++) {
  let p3 = p + k * 48;
  let p4 = p1 + k * 20;
  for (var k1 = 0; k1 < 3; k1++) {
   let p5 = p3 + k1 * 8;
   let r6 = w_0[p5];
   let r11 = x_0[p4 + k1];
   r2 += r11.x * r6;
   let r12 = x_0[p4 + k1 + 2];
   r3 += r12.x * r6;
   let r13 = x_0[p4 + k1 + 4];
   r4 += r13.x * r6;
   let r14 = x_0[p4 + k1 + 6];
   r5 += r14.x * r6;
   let r7 = w_0[p5 + 2];
   r2 += r11.y * r7;
   r3 += r12.y * r7;
   r4 += r13.y * r7;
   r5 += r14.y * r7;
   let r8 = w_0[p5 + 4];
   r2 += r11.z * r8;
   r3 += r12.z * r8;
   r4 += r13.z * r8;
   r5 += r14.z * r8;
   let r9 = w_0[p5 + 6];
   r2 += r11.w * r9;
   r3 += r12.w * r9;
   r4 += r13.w * r9;
   r5 += r14.w * r9;
  }
 }
 conv_rf_0[p2] = r2;
 conv_rf_0[p2 + 4] = r3;
 conv_rf_0[p2 + 8] = r4;
 conv_rf_0[p2 + 12] = r5;
 workgroupBarrier();
 let tz2 = i32(thread.z);
 let ty2 = i32(thread.y);
 let tx2 = i32(thread.x);
 let p6 = ty2 * 16 + tz2 * 4 + tx2;
 let p7 = bx * 32 + ty2 * 16 + tz2 * 4 + tx2;
 for (var k2 = 0; k2 < 2; k2++) {
  var r1 = vec4f();
  r1 += conv_rf_0[p6 + k2 * 8];
  r1 += conv_rf_0[p6 + k2 * 8 + 32];
  out0_0[p7 + k2 * 8] = at_least_f32x4(r1 + r10 + r_0[p7 + k2 * 8], vec4f());
 }
}
