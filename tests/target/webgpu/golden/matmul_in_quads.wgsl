enable subgroups;

diagnostic(off, subgroup_uniformity);

fn quad_vector_f32(x: f32) -> vec4<f32> {
    let low = vec2(quadBroadcast(x, 0u), quadBroadcast(x, 1u));
    return vec4(low, quadBroadcast(x, 2u), quadBroadcast(x, 3u));
}

fn is_nan_f32x4(x: vec4f) -> vec4<bool> {
    return (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) > vec4u(0x7f800000u);
}

fn at_least_f32x4(a: vec4f, b: vec4f) -> vec4f {
    return select(max(a, b), a, is_nan_f32x4(a));
}

// matmul_in_quads: /matmul
@group(0) @binding(0) var<storage, read_write> a_0: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> b_0: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> c_0: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> out0_0: array<vec4f>;
@compute @workgroup_size(8, 4)
fn matmul_in_quads(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let quad_lane = thread.x & 3u;
 let bx = i32(workgroup.x);
 let ty = i32(thread.y);
 let tx = i32(thread.x);
 let p = ty * 32;
 let p1 = tx * 64;
 let p2 = ty * 64 + tx * 2;
 var r = vec4f();
 var r1 = vec4f();
 var r2 = vec4f();
 var r3 = vec4f();
 var r4 = vec4f();
 var r5 = vec4f();
 var r6 = vec4f();
 var r7 = vec4f();
 for (var k = 0; k < 8; k++) {
  let p3 = p + k;
  let r18 = quad_vector_f32(a_0[p3][quad_lane]);
  let r8 = b_0[p1 + k * 8];
  let r9 = b_0[p1 + k * 8 + 1];
  let r19 = quad_vector_f32(a_0[p3 + 8][quad_lane]);
  let r20 = quad_vector_f32(a_0[p3 + 16][quad_lane]);
  let r21 = quad_vector_f32(a_0[p3 + 24][quad_lane]);
  let r10 = b_0[p1 + k * 8 + 2];
  let r11 = b_0[p1 + k * 8 + 3];
  let r12 = b_0[p1 + k * 8 + 4];
  let r13 = b_0[p1 + k * 8 + 5];
  let r14 = b_0[p1 + k * 8 + 6];
  let r8_r10_r12_r14 = mat4x4f(r8, r10, r12, r14);
  r += r8_r10_r12_r14 * r18;
  let r15 = b_0[p1 + k * 8 + 7];
  let r9_r11_r13_r15 = mat4x4f(r9, r11, r13, r15);
  r1 += r9_r11_r13_r15 * r18;
  r2 += r8_r10_r12_r14 * r19;
  r3 += r9_r11_r13_r15 * r19;
  r4 += r8_r10_r12_r14 * r20;
  r5 += r9_r11_r13_r15 * r20;
  r6 += r8_r10_r12_r14 * r21;
  r7 += r9_r11_r13_r15 * r21;
 }
 let r16 = c_0[tx * 2];
 let r17 = c_0[tx * 2 + 1];
 for (var k1 = 0; k1 < 4; k1++) {
  out0_0[p2 + k1 * 16] = at_least_f32x4(r + r16, vec4f());
  out0_0[p2 + k1 * 16 + 1] = at_least_f32x4(r1 + r17, vec4f());
  r = r2;
  r1 = r3;
  r2 = r4;
  r3 = r5;
  r4 = r6;
  r5 = r7;
 }
}
