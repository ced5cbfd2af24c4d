enable subgroups;

diagnostic(off, subgroup_uniformity);

fn quad_swaps_2_f32(x: f32, z: f32) -> vec4<f32> {
    return vec4(x, quadSwapX(x), z, quadSwapX(z));
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
@compute @workgroup_size(32)
fn matmul_in_quads(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let quad_lane = thread.x & 3u;
 let quad_lane1 = quad_lane ^ 1u;
 let quad_lane2 = quad_lane ^ 2u;
 let quad_offset = i32(quad_lane) * 2;
 let quad_offset1 = i32(quad_lane1) * 2;
 let bx = i32(workgroup.x);
 let tx = i32(thread.x);
 let p = (tx >> 4u) * 64 + (tx >> 1u) * 32 - (tx >> 2u) * 64;
 let p1 = (tx & 1) * 64 + (tx >> 2u) * 128 - (tx >> 4u) * 512;
 let p2 = tx + (tx & 15) + (tx >> 2u) * 4 - (tx >> 1u) * 4;
 let p3 = tx * 2 + (tx >> 4u) * 112 + (tx >> 1u) * 60 - (tx >> 2u) * 124;
 var r = vec4f();
 var r1 = vec4f();
 var r2 = vec4f();
 var r3 = vec4f();
 var r4 = vec4f();
 var r5 = vec4f();
 var r6 = vec4f();
 var r7 = vec4f();
 for (var k = 0; k < 8; k++) {
  let p4 = p + k;
  let r18 = quad_swaps_2_f32(a_0[p4][quad_lane], a_0[p4][quad_lane2]);
  let r8 = b_0[k * 8 + p1 + quad_offset];
  let r9 = b_0[k * 8 + p1 + 1 + quad_offset];
  let r19 = quad_swaps_2_f32(a_0[p4 + 8][quad_lane], a_0[p4 + 8][quad_lane2]);
  let r20 = quad_swaps_2_f32(a_0[p4 + 16][quad_lane], a_0[p4 + 16][quad_lane2]);
  let r21 = quad_swaps_2_f32(a_0[p4 + 24][quad_lane], a_0[p4 + 24][quad_lane2]);
  let r10 = b_0[k * 8 + p1 + quad_offset1];
  let r11 = b_0[k * 8 + p1 + 1 + quad_offset1];
  let r12 = quadSwapY(r8);
  let r13 = quadSwapY(r9);
  let r14 = quadSwapY(r10);
  let r8_r10_r12_r14 = mat4x4f(r8, r10, r12, r14);
  r += r8_r10_r12_r14 * r18;
  let r15 = quadSwapY(r11);
  let r9_r11_r13_r15 = mat4x4f(r9, r11, r13, r15);
  r1 += r9_r11_r13_r15 * r18;
  r2 += r8_r10_r12_r14 * r19;
  r3 += r9_r11_r13_r15 * r19;
  r4 += r8_r10_r12_r14 * r20;
  r5 += r9_r11_r13_r15 * r20;
  r6 += r8_r10_r12_r14 * r21;
  r7 += r9_r11_r13_r15 * r21;
 }
 let r16 = c_0[p2];
 let r17 = c_0[p2 + 1];
 for (var k1 = 0; k1 < 4; k1++) {
  out0_0[p3 + k1 * 16] = at_least_f32x4(r + r16, vec4f());
  out0_0[p3 + k1 * 16 + 1] = at_least_f32x4(r1 + r17, vec4f());
  r = r2;
  r1 = r3;
  r2 = r4;
  r3 = r5;
  r4 = r6;
  r5 = r7;
 }
}
