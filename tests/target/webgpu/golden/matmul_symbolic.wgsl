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
@compute @workgroup_size(4, 16)
fn matmul_symbolic(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u, @builtin(num_workgroups) workgroups: vec3u) {
 let s = symbols_0[0].x;
 let group = i32(workgroup.x + workgroup.y * workgroups.x);
 if (group < (((s >> 2u) + 15) >> 4u)) {
  let bx = group;
  let ty = i32(thread.y);
  if (bx * 16 + ty < (s >> 2u)) {
   let tx = i32(thread.x);
   let p = tx + (tx >> 1u) * 14;
   let p1 = bx * 128 + ty * 8;
   let p2 = bx * 256 + ty * 16 + tx;
   var r = vec4f();
   var r1 = vec4f();
   var r2 = vec4f();
   var r3 = vec4f();
   for (var k = 0; k < 2; k++) {
    let p3 = p + k * 8;
    let r5 = b_0[p3];
    let r10 = a_0[p1 + k];
    r += r10.x * r5;
    let r11 = a_0[p1 + k + 2];
    r1 += r11.x * r5;
    let r12 = a_0[p1 + k + 4];
    r2 += r12.x * r5;
    let r13 = a_0[p1 + k + 6];
    r3 += r13.x * r5;
    let r6 = b_0[p3 + 2];
    r += r10.y * r6;
    r1 += r11.y * r6;
    r2 += r12.y * r6;
    r3 += r13.y * r6;
    let r7 = b_0[p3 + 4];
    r += r10.z * r7;
    r1 += r11.z * r7;
    r2 += r12.z * r7;
    r3 += r13.z * r7;
    let r8 = b_0[p3 + 6];
    r += r10.w * r8;
    r1 += r11.w * r8;
    r2 += r12.w * r8;
    r3 += r13.w * r8;
   }
   let r9 = c_0[tx];
   out0_0[p2] = at_least_f32x4(r + r9, vec4f());
   out0_0[p2 + 4] = at_least_f32x4(r1 + r9, vec4f());
   out0_0[p2 + 8] = at_least_f32x4(r2 + r9, vec4f());
   out0_0[p2 + 12] = at_least_f32x4(r3 + r9, vec4f());
  }
 }
 if (group >= (((s >> 2u) + 15) >> 4u) && group < ((((s & 3) + 15) >> 4u) + (((s >> 2u) + 15) >> 4u))) {
  let bx1 = (group - (((s >> 2u) + 15) >> 4u));
  let ty1 = i32(thread.y);
  if (ty1 < (s & 3)) {
   let tx1 = i32(thread.x);
   let p4 = ty1 * 2 + (s >> 2u) * 8;
   let p5 = tx1 + (tx1 >> 1u) * 14;
   var r4 = vec4f();
   for (var k1 = 0; k1 < 2; k1++) {
    let r14 = a_0[p4 + k1];
    r4 += r14.x * b_0[p5 + k1 * 8];
    r4 += r14.y * b_0[p5 + k1 * 8 + 2];
    r4 += r14.z * b_0[p5 + k1 * 8 + 4];
    r4 += r14.w * b_0[p5 + k1 * 8 + 6];
   }
   out0_0[ty1 * 4 + tx1 + (s >> 2u) * 16] = at_least_f32x4(r4 + c_0[tx1], vec4f());
  }
 }
}
