var<private> infinity_bits: u32 = 0x7f800000u;

// max_pool: /max_pool
@group(0) @binding(0) var<storage, read_write> x_0: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> out0_0: array<vec4f>;
@compute @workgroup_size(32)
fn max_pool(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>) {
 let r_4 = vec4f(bitcast<f32>(infinity_bits | 0x80000000u));
 let bx = i32(workgroup.x);
 let tx = i32(thread.x);
 let p = tx + (tx >> 1u) * 14 + (tx >> 2u) * 32;
 let p_1 = tx + (tx >> 1u) * 6;
 var r = r_4;
 var r_1 = r_4;
 var r_2 = r_4;
 var r_3 = r_4;
 r = max(r, x_0[p]);
 r_1 = max(r_1, x_0[p + 4]);
 r_2 = max(r_2, x_0[p + 8]);
 r_3 = max(r_3, x_0[p + 12]);
 r = max(r, x_0[p + 2]);
 r_1 = max(r_1, x_0[p + 6]);
 r_2 = max(r_2, x_0[p + 10]);
 r_3 = max(r_3, x_0[p + 14]);
 r = max(r, x_0[p + 32]);
 r_1 = max(r_1, x_0[p + 36]);
 r_2 = max(r_2, x_0[p + 40]);
 r_3 = max(r_3, x_0[p + 44]);
 r = max(r, x_0[p + 34]);
 r_1 = max(r_1, x_0[p + 38]);
 r_2 = max(r_2, x_0[p + 42]);
 r_3 = max(r_3, x_0[p + 46]);
 out0_0[p_1] = r;
 out0_0[p_1 + 2] = r_1;
 out0_0[p_1 + 4] = r_2;
 out0_0[p_1 + 6] = r_3;
}
