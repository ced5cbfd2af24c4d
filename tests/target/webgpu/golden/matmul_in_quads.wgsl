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
 let p = (tx & 1) + (tx >> 2u) * 64 + bx * 256 - (tx >> 4u) * 256;
 let p1 = (tx >> 4u) * 64 + (tx >> 1u) * 32 - (tx >> 2u) * 64;
 let p2 = tx + (tx >> 4u) * 120 + (tx >> 1u) * 62 + bx * 8 - (tx >> 2u) * 126;
 var r = vec4f();
 var r1 = vec4f();
 var r2 = vec4f();
 var r3 = vec4f();
 for (var k = 0; k < 8; k++) {
  let p3 = p + k * 8;
  let r4 = b_0[p3 + quad_offset];
  let r5 = b_0[p3 + quad_offset1];
  let r6 = quadSwapY(r4);
  let r7 = quadSwapY(r5);
  let r9 = quad_swaps_2_f32(a_0[p1 + k][quad_lane], a_0[p1 + k][quad_lane2]);
  let r4_r5_r6_r7 = mat4x4f(r4, r5, r6, r7);
  r += r4_r5_r6_r7 * r9;
  let r10 = quad_swaps_2_f32(a_0[p1 + k + 8][quad_lane], a_0[p1 + k + 8][quad_lane2]);
  r1 += r4_r5_r6_r7 * r10;
  let r11 = quad_swaps_2_f32(a_0[p1 + k + 16][quad_lane], a_0[p1 + k + 16][quad_lane2]);
  r2 += r4_r5_r6_r7 * r11;
  let r12 = quad_swaps_2_f32(a_0[p1 + k + 24][quad_lane], a_0[p1 + k + 24][quad_lane2]);
  r3 += r4_r5_r6_r7 * r12;
 }
 let r8 = c_0[(tx & 1) + (tx >> 2u) * 2 + bx * 8 - (tx >> 4u) * 8];
 for (var k1 = 0; k1 < 4; k1++) {
  out0_0[p2 + k1 * 16] = at_least_f32x4(r + r8, vec4f());
  r = r1;
  r1 = r2;
  r2 = r3;
 }
}
