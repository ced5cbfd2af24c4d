fn is_nan_f32x4(x: vec4f) -> vec4<bool> {
    return (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) > vec4u(0x7f800000u);
}

fn at_least_f32x4(a: vec4f, b: vec4f) -> vec4f {
    return select(max(a, b), a, is_nan_f32x4(a));
}

// convolution_first: /convolution_first
@group(0) @binding(0) var<storage, read_write> x_0: array<f32>;
@group(0) @binding(1) var<storage, read_write> w_0: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> b_0: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> r_0: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> out0_0: array<vec4f>;
@compute @workgroup_size(1, 12)
fn convolution_first(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let group = i32(workgroup.x);
 if (group < 1) {
  let bx = group;
  let ty = i32(thread.y);
  let tx = i32(thread.x);
  let p = ty * 24 + ty * 4 / 7 * 48;
  let p1 = (ty * 4 + 1) / 7 * 48 + ty * 24;
  let p2 = (ty * 4 + 2) / 7 * 48 + ty * 24;
  let p3 = (ty * 4 + 3) / 7 * 48 + ty * 24;
  var r1 = vec4f();
  var r2 = vec4f();
  var r3 = vec4f();
  var r4 = vec4f();
  var r5 = vec4f();
  var r6 = vec4f();
  var r7 = vec4f();
  var r8 = vec4f();
  for (var k = 0; k < 3; k++) {
   let p4 = p + k * 45;
   let p5 = k * 18;
   let p6 = p1 + k * 45;
   let p7 = p2 + k * 45;
   let p8 = p3 + k * 45;
   for (var k1 = 0; k1 < 3; k1++) {
    let p9 = p4 + k1 * 3;
    let r11 = vec4f(x_0[p9]);
    let r12 = w_0[p5 + k1 * 6];
    r1 += r11 * r12;
    let r13 = w_0[p5 + k1 * 6 + 1];
    r2 += r11 * r13;
    let r14 = vec4f(x_0[p6 + k1 * 3 + 6]);
    r3 += r14 * r12;
    r4 += r14 * r13;
    let r15 = vec4f(x_0[p7 + k1 * 3 + 12]);
    r5 += r15 * r12;
    r6 += r15 * r13;
    let r16 = vec4f(x_0[p8 + k1 * 3 + 18]);
    r7 += r16 * r12;
    r8 += r16 * r13;
    let r17 = vec4f(x_0[p9 + 1]);
    let r18 = w_0[p5 + k1 * 6 + 2];
    r1 += r17 * r18;
    let r19 = w_0[p5 + k1 * 6 + 3];
    r2 += r17 * r19;
    let r20 = vec4f(x_0[p6 + k1 * 3 + 7]);
    r3 += r20 * r18;
    r4 += r20 * r19;
    let r21 = vec4f(x_0[p7 + k1 * 3 + 13]);
    r5 += r21 * r18;
    r6 += r21 * r19;
    let r22 = vec4f(x_0[p8 + k1 * 3 + 19]);
    r7 += r22 * r18;
    r8 += r22 * r19;
    let r23 = vec4f(x_0[p9 + 2]);
    let r24 = w_0[p5 + k1 * 6 + 4];
    r1 += r23 * r24;
    let r25 = w_0[p5 + k1 * 6 + 5];
    r2 += r23 * r25;
    let r26 = vec4f(x_0[p6 + k1 * 3 + 8]);
    r3 += r26 * r24;
    r4 += r26 * r25;
    let r27 = vec4f(x_0[p7 + k1 * 3 + 14]);
    r5 += r27 * r24;
    r6 += r27 * r25;
    let r28 = vec4f(x_0[p8 + k1 * 3 + 20]);
    r7 += r28 * r24;
    r8 += r28 * r25;
   }
  }
  let r29 = b_0[0];
  out0_0[ty * 8] = at_least_f32x4(r1 + r29 + r_0[ty * 8], vec4f());
  let r30 = b_0[1];
  out0_0[ty * 8 + 1] = at_least_f32x4(r2 + r30 + r_0[ty * 8 + 1], vec4f());
  out0_0[ty * 8 + 2] = at_least_f32x4(r3 + r29 + r_0[ty * 8 + 2], vec4f());
  out0_0[ty * 8 + 3] = at_least_f32x4(r4 + r30 + r_0[ty * 8 + 3], vec4f());
  out0_0[ty * 8 + 4] = at_least_f32x4(r5 + r29 + r_0[ty * 8 + 4], vec4f());
  out0_0[ty * 8 + 5] = at_least_f32x4(r6 + r30 + r_0[ty * 8 + 5], vec4f());
  out0_0[ty * 8 + 6] = at_least_f32x4(r7 + r29 + r_0[ty * 8 + 6], vec4f());
  out0_0[ty * 8 + 7] = at_least_f32x4(r8 + r30 + r_0[ty * 8 + 7], vec4f());
 }
 if (group >= 1 && group < 2) {
  let bx1 = (group - 1);
  let ty1 = i32(thread.y);
  if (ty1 < 1) {
   let tx1 = i32(thread.x);
   var r9 = vec4f();
   var r10 = vec4f();
   for (var k2 = 0; k2 < 3; k2++) {
    let p10 = k2 * 45;
    let p11 = k2 * 18;
    for (var k3 = 0; k3 < 3; k3++) {
     let r31 = vec4f(x_0[p10 + k3 * 3 + 576]);
     r9 += r31 * w_0[p11 + k3 * 6];
     r10 += r31 * w_0[p11 + k3 * 6 + 1];
     let r32 = vec4f(x_0[p10 + k3 * 3 + 577]);
     r9 += r32 * w_0[p11 + k3 * 6 + 2];
     r10 += r32 * w_0[p11 + k3 * 6 + 3];
     let r33 = vec4f(x_0[p10 + k3 * 3 + 578]);
     r9 += r33 * w_0[p11 + k3 * 6 + 4];
     r10 += r33 * w_0[p11 + k3 * 6 + 5];
    }
   }
   out0_0[96] = at_least_f32x4(r9 + b_0[0] + r_0[96], vec4f());
   out0_0[97] = at_least_f32x4(r10 + b_0[1] + r_0[97], vec4f());
  }
 }
}
