fn is_nan_f32x4(x: vec4f) -> vec4<bool> {
    return (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) > vec4u(0x7f800000u);
}

fn at_least_f32x4(a: vec4f, b: vec4f) -> vec4f {
    return select(max(a, b), a, is_nan_f32x4(a));
}

// matmul_symbolic: /matmul_symbolic
@group(0) @binding(0) var<storage, read_write> a_0: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> b_0: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> c_0: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> out0_0: array<vec4f>;
@group(0) @binding(4) var<uniform> symbols_0: array<vec4<i32>, 1>;
@compute @workgroup_size(2, 32)
fn matmul_symbolic(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u, @builtin(num_workgroups) workgroups: vec3u) {
 let s = symbols_0[0].x;
 let group = i32(workgroup.x + workgroup.y * workgroups.x);
 if (group < (((s >> 2u) + 31) >> 5u)) {
  let bx = group;
  let ty = i32(thread.y);
  if (bx * 32 + ty < (s >> 2u)) {
   let tx = i32(thread.x);
   let p = bx * 256 + ty * 8;
   let p1 = tx * 16;
   let p2 = bx * 512 + ty * 16 + tx * 2;
   var r = vec4f();
   var r1 = vec4f();
   var r2 = vec4f();
   var r3 = vec4f();
   var r4 = vec4f();
   var r5 = vec4f();
   var r6 = vec4f();
   var r7 = vec4f();
   for (var k = 0; k < 2; k++) {
    let p3 = p + k;
    let r20 = a_0[p3];
    let r10 = b_0[p1 + k * 8];
    r += r20.x * r10;
    let r11 = b_0[p1 + k * 8 + 1];
    r1 += r20.x * r11;
    let r21 = a_0[p3 + 2];
    r2 += r21.x * r10;
    r3 += r21.x * r11;
    let r22 = a_0[p3 + 4];
    r4 += r22.x * r10;
    r5 += r22.x * r11;
    let r23 = a_0[p3 + 6];
    r6 += r23.x * r10;
    r7 += r23.x * r11;
    let r12 = b_0[p1 + k * 8 + 2];
    r += r20.y * r12;
    let r13 = b_0[p1 + k * 8 + 3];
    r1 += r20.y * r13;
    r2 += r21.y * r12;
    r3 += r21.y * r13;
    r4 += r22.y * r12;
    r5 += r22.y * r13;
    r6 += r23.y * r12;
    r7 += r23.y * r13;
    let r14 = b_0[p1 + k * 8 + 4];
    r += r20.z * r14;
    let r15 = b_0[p1 + k * 8 + 5];
    r1 += r20.z * r15;
    r2 += r21.z * r14;
    r3 += r21.z * r15;
    r4 += r22.z * r14;
    r5 += r22.z * r15;
    r6 += r23.z * r14;
    r7 += r23.z * r15;
    let r16 = b_0[p1 + k * 8 + 6];
    r += r20.w * r16;
    let r17 = b_0[p1 + k * 8 + 7];
    r1 += r20.w * r17;
    r2 += r21.w * r16;
    r3 += r21.w * r17;
    r4 += r22.w * r16;
    r5 += r22.w * r17;
    r6 += r23.w * r16;
    r7 += r23.w * r17;
   }
   let r18 = c_0[tx * 2];
   out0_0[p2] = at_least_f32x4(r + r18, vec4f());
   let r19 = c_0[tx * 2 + 1];
   out0_0[p2 + 1] = at_least_f32x4(r1 + r19, vec4f());
   out0_0[p2 + 4] = at_least_f32x4(r2 + r18, vec4f());
   out0_0[p2 + 5] = at_least_f32x4(r3 + r19, vec4f());
   out0_0[p2 + 8] = at_least_f32x4(r4 + r18, vec4f());
   out0_0[p2 + 9] = at_least_f32x4(r5 + r19, vec4f());
   out0_0[p2 + 12] = at_least_f32x4(r6 + r18, vec4f());
   out0_0[p2 + 13] = at_least_f32x4(r7 + r19, vec4f());
  }
 }
 if (group >= (((s >> 2u) + 31) >> 5u) && group < ((((s & 3) + 31) >> 5u) + (((s >> 2u) + 31) >> 5u))) {
  let bx1 = (group - (((s >> 2u) + 31) >> 5u));
  let ty1 = i32(thread.y);
  if (ty1 < (s & 3)) {
   let tx1 = i32(thread.x);
   let p4 = ty1 * 2 + (s >> 2u) * 8;
   let p5 = tx1 * 16;
   let p6 = ty1 * 4 + tx1 * 2 + (s >> 2u) * 16;
   var r8 = vec4f();
   var r9 = vec4f();
   for (var k1 = 0; k1 < 2; k1++) {
    let r24 = a_0[p4 + k1];
    r8 += r24.x * b_0[p5 + k1 * 8];
    r9 += r24.x * b_0[p5 + k1 * 8 + 1];
    r8 += r24.y * b_0[p5 + k1 * 8 + 2];
    r9 += r24.y * b_0[p5 + k1 * 8 + 3];
    r8 += r24.z * b_0[p5 + k1 * 8 + 4];
    r9 += r24.z * b_0[p5 + k1 * 8 + 5];
    r8 += r24.w * b_0[p5 + k1 * 8 + 6];
    r9 += r24.w * b_0[p5 + k1 * 8 + 7];
   }
   out0_0[p6] = at_least_f32x4(r8 + c_0[tx1 * 2], vec4f());
   out0_0[p6 + 1] = at_least_f32x4(r9 + c_0[tx1 * 2 + 1], vec4f());
  }
 }
}
