fn is_nan_f32x4(x: vec4f) -> vec4<bool> {
    return (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) > vec4u(0x7f800000u);
}

fn at_least_f32x4(a: vec4f, b: vec4f) -> vec4f {
    return select(max(a, b), a, is_nan_f32x4(a));
}

fn is_nan_f32(x: f32) -> bool {
    return (bitcast<u32>(x) & u32(0x7fffffffu)) > u32(0x7f800000u);
}

fn at_least_f32(a: f32, b: f32) -> f32 {
    return select(max(a, b), a, is_nan_f32(a));
}

// matmul_remainders: /matmul_remainders
@group(0) @binding(0) var<storage, read_write> a_0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b_0: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> c_0: array<f32>;
@group(0) @binding(3) var<storage, read_write> out0_0: array<f32>;
@compute @workgroup_size(2, 2)
fn matmul_remainders(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 var r13: vec4f;
 let group = i32(workgroup.x);
 if (group < 1) {
  let bx = group;
  let ty = i32(thread.y);
  let tx = i32(thread.x);
  let p = ty * 24;
  let p1 = ty * 40 + tx * 4;
  var r = vec4f();
  var r1 = vec4f();
  var r2 = vec4f();
  var r3 = vec4f();
  for (var k = 0; k < 2; k++) {
   let p2 = tx + k * 6;
   let r10 = b_0[p2];
   r += a_0[p + k * 3] * r10;
   r1 += a_0[p + k * 3 + 6] * r10;
   r2 += a_0[p + k * 3 + 12] * r10;
   r3 += a_0[p + k * 3 + 18] * r10;
   let r11 = b_0[p2 + 2];
   r += a_0[p + k * 3 + 1] * r11;
   r1 += a_0[p + k * 3 + 7] * r11;
   r2 += a_0[p + k * 3 + 13] * r11;
   r3 += a_0[p + k * 3 + 19] * r11;
   let r12 = b_0[p2 + 4];
   r += a_0[p + k * 3 + 2] * r12;
   r1 += a_0[p + k * 3 + 8] * r12;
   r2 += a_0[p + k * 3 + 14] * r12;
   r3 += a_0[p + k * 3 + 20] * r12;
  }
  let p3 = tx * 4;
  r13 = vec4f(c_0[p3], c_0[p3 + 1], c_0[p3 + 2], c_0[p3 + 3]);
  {
   let vector = at_least_f32x4(r + r13, vec4f());
   out0_0[p1] = vector.x;
   out0_0[p1 + 1] = vector.y;
   out0_0[p1 + 2] = vector.z;
   out0_0[p1 + 3] = vector.w;
  }
  let p4 = p1 + 10;
  {
   let vector = at_least_f32x4(r1 + r13, vec4f());
   out0_0[p4] = vector.x;
   out0_0[p4 + 1] = vector.y;
   out0_0[p4 + 2] = vector.z;
   out0_0[p4 + 3] = vector.w;
  }
  let p5 = p1 + 20;
  {
   let vector = at_least_f32x4(r2 + r13, vec4f());
   out0_0[p5] = vector.x;
   out0_0[p5 + 1] = vector.y;
   out0_0[p5 + 2] = vector.z;
   out0_0[p5 + 3] = vector.w;
  }
  let p6 = p1 + 30;
  {
   let vector = at_least_f32x4(r3 + r13, vec4f());
   out0_0[p6] = vector.x;
   out0_0[p6 + 1] = vector.y;
   out0_0[p6 + 2] = vector.z;
   out0_0[p6 + 3] = vector.w;
  }
 }
 if (group >= 1 && group < 2) {
  let bx1 = (group - 1);
  let ty1 = i32(thread.y);
  if (ty1 < 1) {
   let tx1 = i32(thread.x);
   var r8 = vec4f();
   for (var k1 = 0; k1 < 2; k1++) {
    let p7 = tx1 + k1 * 6;
    r8 += a_0[k1 * 3 + 48] * b_0[p7];
    r8 += a_0[k1 * 3 + 49] * b_0[p7 + 2];
    r8 += a_0[k1 * 3 + 50] * b_0[p7 + 4];
   }
   let p8 = tx1 * 4 + 80;
   let p9 = tx1 * 4;
   {
    let vector = at_least_f32x4(r8 + vec4f(c_0[p9], c_0[p9 + 1], c_0[p9 + 2], c_0[p9 + 3]), vec4f());
    out0_0[p8] = vector.x;
    out0_0[p8 + 1] = vector.y;
    out0_0[p8 + 2] = vector.z;
    out0_0[p8 + 3] = vector.w;
   }
  }
 }
 if (group >= 2 && group < 3) {
  let bx2 = (group - 2);
  let ty2 = i32(thread.y);
  let tx2 = i32(thread.x);
  let p10 = ty2 * 24;
  var r4 = 0.0f;
  var r5 = 0.0f;
  var r6 = 0.0f;
  var r7 = 0.0f;
  for (var k2 = 0; k2 < 2; k2++) {
   let p11 = tx2 + k2 * 24;
   let v = b_0[(p11 + 48) >> 2u][(p11 + 48) & 3];
   let p12 = tx2 + k2 * 24;
   r4 += a_0[p10 + k2 * 3] * v;
   r5 += a_0[p10 + k2 * 3 + 6] * v;
   r6 += a_0[p10 + k2 * 3 + 12] * v;
   r7 += a_0[p10 + k2 * 3 + 18] * v;
   let v1 = b_0[(p12 + 56) >> 2u][(p12 + 56) & 3];
   let p13 = tx2 + k2 * 24;
   r4 += a_0[p10 + k2 * 3 + 1] * v1;
   r5 += a_0[p10 + k2 * 3 + 7] * v1;
   r6 += a_0[p10 + k2 * 3 + 13] * v1;
   r7 += a_0[p10 + k2 * 3 + 19] * v1;
   let v2 = b_0[(p13 + 64) >> 2u][(p13 + 64) & 3];
   r4 += a_0[p10 + k2 * 3 + 2] * v2;
   r5 += a_0[p10 + k2 * 3 + 8] * v2;
   r6 += a_0[p10 + k2 * 3 + 14] * v2;
   r7 += a_0[p10 + k2 * 3 + 20] * v2;
  }
  let v3 = c_0[tx2 + 8];
  let p14 = ty2 * 40 + tx2;
  out0_0[p14 + 8] = at_least_f32(r4 + v3, 0.0f);
  out0_0[p14 + 18] = at_least_f32(r5 + v3, 0.0f);
  out0_0[p14 + 28] = at_least_f32(r6 + v3, 0.0f);
  out0_0[p14 + 38] = at_least_f32(r7 + v3, 0.0f);
 }
 if (group >= 3 && group < 4) {
  let bx3 = (group - 3);
  let ty3 = i32(thread.y);
  if (ty3 < 1) {
   let tx3 = i32(thread.x);
   var r9 = 0.0f;
   for (var k3 = 0; k3 < 2; k3++) {
    let p15 = tx3 + k3 * 24;
    r9 += a_0[k3 * 3 + 48] * b_0[(p15 + 48) >> 2u][(p15 + 48) & 3];
    r9 += a_0[k3 * 3 + 49] * b_0[(p15 + 56) >> 2u][(p15 + 56) & 3];
    r9 += a_0[k3 * 3 + 50] * b_0[(p15 + 64) >> 2u][(p15 + 64) & 3];
   }
   out0_0[tx3 + 88] = at_least_f32(r9 + c_0[tx3 + 8], 0.0f);
  }
 }
}
