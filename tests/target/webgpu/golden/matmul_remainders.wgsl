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
 let group = i32(workgroup.x);
 if (group < 1) {
  let bx = group;
  let ty = i32(thread.y);
  let tx = i32(thread.x);
  if (tx < 1) {
   let p = ty * 24;
   var r = vec4f();
   var r1 = vec4f();
   var r2 = vec4f();
   var r3 = vec4f();
   var r4 = vec4f();
   var r5 = vec4f();
   var r6 = vec4f();
   var r7 = vec4f();
   for (var k = 0; k < 2; k++) {
    let p1 = p + k * 3;
    let r15 = vec4f(a_0[p1]);
    let r16 = b_0[k * 6];
    r += r15 * r16;
    let r17 = b_0[k * 6 + 1];
    r1 += r15 * r17;
    let r18 = vec4f(a_0[p1 + 6]);
    r2 += r18 * r16;
    r3 += r18 * r17;
    let r19 = vec4f(a_0[p1 + 12]);
    r4 += r19 * r16;
    r5 += r19 * r17;
    let r20 = vec4f(a_0[p1 + 18]);
    r6 += r20 * r16;
    r7 += r20 * r17;
    let r21 = vec4f(a_0[p1 + 1]);
    let r22 = b_0[k * 6 + 2];
    r += r21 * r22;
    let r23 = b_0[k * 6 + 3];
    r1 += r21 * r23;
    let r24 = vec4f(a_0[p1 + 7]);
    r2 += r24 * r22;
    r3 += r24 * r23;
    let r25 = vec4f(a_0[p1 + 13]);
    r4 += r25 * r22;
    r5 += r25 * r23;
    let r26 = vec4f(a_0[p1 + 19]);
    r6 += r26 * r22;
    r7 += r26 * r23;
    let r27 = vec4f(a_0[p1 + 2]);
    let r28 = b_0[k * 6 + 4];
    r += r27 * r28;
    let r29 = b_0[k * 6 + 5];
    r1 += r27 * r29;
    let r30 = vec4f(a_0[p1 + 8]);
    r2 += r30 * r28;
    r3 += r30 * r29;
    let r31 = vec4f(a_0[p1 + 14]);
    r4 += r31 * r28;
    r5 += r31 * r29;
    let r32 = vec4f(a_0[p1 + 20]);
    r6 += r32 * r28;
    r7 += r32 * r29;
   }
   let r33 = vec4f(c_0[0], c_0[1], c_0[2], c_0[3]);
   let p2 = ty * 40;
   {
    let vector = at_least_f32x4(r + r33, vec4f());
    out0_0[p2] = vector.x;
    out0_0[p2 + 1] = vector.y;
    out0_0[p2 + 2] = vector.z;
    out0_0[p2 + 3] = vector.w;
   }
   let r34 = vec4f(c_0[4], c_0[5], c_0[6], c_0[7]);
   let p3 = ty * 40 + 4;
   {
    let vector = at_least_f32x4(r1 + r34, vec4f());
    out0_0[p3] = vector.x;
    out0_0[p3 + 1] = vector.y;
    out0_0[p3 + 2] = vector.z;
    out0_0[p3 + 3] = vector.w;
   }
   let p4 = ty * 40 + 10;
   {
    let vector = at_least_f32x4(r2 + r33, vec4f());
    out0_0[p4] = vector.x;
    out0_0[p4 + 1] = vector.y;
    out0_0[p4 + 2] = vector.z;
    out0_0[p4 + 3] = vector.w;
   }
   let p5 = ty * 40 + 14;
   {
    let vector = at_least_f32x4(r3 + r34, vec4f());
    out0_0[p5] = vector.x;
    out0_0[p5 + 1] = vector.y;
    out0_0[p5 + 2] = vector.z;
    out0_0[p5 + 3] = vector.w;
   }
   let p6 = ty * 40 + 20;
   {
    let vector = at_least_f32x4(r4 + r33, vec4f());
    out0_0[p6] = vector.x;
    out0_0[p6 + 1] = vector.y;
    out0_0[p6 + 2] = vector.z;
    out0_0[p6 + 3] = vector.w;
   }
   let p7 = ty * 40 + 24;
   {
    let vector = at_least_f32x4(r5 + r34, vec4f());
    out0_0[p7] = vector.x;
    out0_0[p7 + 1] = vector.y;
    out0_0[p7 + 2] = vector.z;
    out0_0[p7 + 3] = vector.w;
   }
   let p8 = ty * 40 + 30;
   {
    let vector = at_least_f32x4(r6 + r33, vec4f());
    out0_0[p8] = vector.x;
    out0_0[p8 + 1] = vector.y;
    out0_0[p8 + 2] = vector.z;
    out0_0[p8 + 3] = vector.w;
   }
   let p9 = ty * 40 + 34;
   {
    let vector = at_least_f32x4(r7 + r34, vec4f());
    out0_0[p9] = vector.x;
    out0_0[p9 + 1] = vector.y;
    out0_0[p9 + 2] = vector.z;
    out0_0[p9 + 3] = vector.w;
   }
  }
 }
 if (group >= 1 && group < 2) {
  let bx1 = (group - 1);
  let ty1 = i32(thread.y);
  if (ty1 < 1) {
   let tx1 = i32(thread.x);
   if (tx1 < 1) {
    var r12 = vec4f();
    var r13 = vec4f();
    for (var k1 = 0; k1 < 2; k1++) {
     let r35 = vec4f(a_0[k1 * 3 + 48]);
     r12 += r35 * b_0[k1 * 6];
     r13 += r35 * b_0[k1 * 6 + 1];
     let r36 = vec4f(a_0[k1 * 3 + 49]);
     r12 += r36 * b_0[k1 * 6 + 2];
     r13 += r36 * b_0[k1 * 6 + 3];
     let r37 = vec4f(a_0[k1 * 3 + 50]);
     r12 += r37 * b_0[k1 * 6 + 4];
     r13 += r37 * b_0[k1 * 6 + 5];
    }
    {
     let vector = at_least_f32x4(r12 + vec4f(c_0[0], c_0[1], c_0[2], c_0[3]), vec4f());
     out0_0[80] = vector.x;
     out0_0[81] = vector.y;
     out0_0[82] = vector.z;
     out0_0[83] = vector.w;
    }
    {
     let vector = at_least_f32x4(r13 + vec4f(c_0[4], c_0[5], c_0[6], c_0[7]), vec4f());
     out0_0[84] = vector.x;
     out0_0[85] = vector.y;
     out0_0[86] = vector.z;
     out0_0[87] = vector.w;
    }
   }
  }
 }
 if (group >= 2 && group < 3) {
  let bx2 = (group - 2);
  let ty2 = i32(thread.y);
  let tx2 = i32(thread.x);
  let p10 = ty2 * 24;
  var r8 = 0.0f;
  var r9 = 0.0f;
  var r10 = 0.0f;
  var r11 = 0.0f;
  for (var k2 = 0; k2 < 2; k2++) {
   let p11 = tx2 + k2 * 24;
   let v = b_0[(p11 + 48) >> 2u][(p11 + 48) & 3];
   let p12 = tx2 + k2 * 24;
   r8 += a_0[p10 + k2 * 3] * v;
   r9 += a_0[p10 + k2 * 3 + 6] * v;
   r10 += a_0[p10 + k2 * 3 + 12] * v;
   r11 += a_0[p10 + k2 * 3 + 18] * v;
   let v1 = b_0[(p12 + 56) >> 2u][(p12 + 56) & 3];
   let p13 = tx2 + k2 * 24;
   r8 += a_0[p10 + k2 * 3 + 1] * v1;
   r9 += a_0[p10 + k2 * 3 + 7] * v1;
   r10 += a_0[p10 + k2 * 3 + 13] * v1;
   r11 += a_0[p10 + k2 * 3 + 19] * v1;
   let v2 = b_0[(p13 + 64) >> 2u][(p13 + 64) & 3];
   r8 += a_0[p10 + k2 * 3 + 2] * v2;
   r9 += a_0[p10 + k2 * 3 + 8] * v2;
   r10 += a_0[p10 + k2 * 3 + 14] * v2;
   r11 += a_0[p10 + k2 * 3 + 20] * v2;
  }
  let v3 = c_0[tx2 + 8];
  let p14 = ty2 * 40 + tx2;
  out0_0[p14 + 8] = at_least_f32(r8 + v3, 0.0f);
  out0_0[p14 + 18] = at_least_f32(r9 + v3, 0.0f);
  out0_0[p14 + 28] = at_least_f32(r10 + v3, 0.0f);
  out0_0[p14 + 38] = at_least_f32(r11 + v3, 0.0f);
 }
 if (group >= 3 && group < 4) {
  let bx3 = (group - 3);
  let ty3 = i32(thread.y);
  if (ty3 < 1) {
   let tx3 = i32(thread.x);
   var r14 = 0.0f;
   for (var k3 = 0; k3 < 2; k3++) {
    let p15 = tx3 + k3 * 24;
    r14 += a_0[k3 * 3 + 48] * b_0[(p15 + 48) >> 2u][(p15 + 48) & 3];
    r14 += a_0[k3 * 3 + 49] * b_0[(p15 + 56) >> 2u][(p15 + 56) & 3];
    r14 += a_0[k3 * 3 + 50] * b_0[(p15 + 64) >> 2u][(p15 + 64) & 3];
   }
   out0_0[tx3 + 88] = at_least_f32(r14 + c_0[tx3 + 8], 0.0f);
  }
 }
}
