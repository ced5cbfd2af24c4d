var<private> infinity_bits: u32 = 0x7f800000u;

// max_pool: /max_pool
@group(0) @binding(0) var<storage, read_write> x_0: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> out0_0: array<vec4f>;
@compute @workgroup_size(32)
fn max_pool(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let r4 = vec4f(bitcast<f32>(infinity_bits | 0x80000000u));
 let bx = i32(workgroup.x);
 let tx = i32(thread.x);
 let p = tx + (tx >> 1u) * 14 + (tx >> 2u) * 32;
 let p1 = tx + (tx >> 1u) * 6;
 var r = r4;
 var r1 = r4;
 var r2 = r4;
 var r3 = r4;
 r = max(r, x_0[p]);
 r1 = max(r1, x_0[p + 4]);
 r2 = max(r2, x_0[p + 8]);
 r3 = max(r3, x_0[p + 12]);
 r = max(r, x_0[p + 2]);
 r1 = max(r1, x_0[p + 6]);
 r2 = max(r2, x_0[p + 10]);
 r3 = max(r3, x_0[p + 14]);
 r = max(r, x_0[p + 32]);
 r1 = max(r1, x_0[p + 36]);
 r2 = max(r2, x_0[p + 40]);
 r3 = max(r3, x_0[p + 44]);
 r = max(r, x_0[p + 34]);
 r1 = max(r1, x_0[p + 38]);
 r2 = max(r2, x_0[p + 42]);
 r3 = max(r3, x_0[p + 46]);
 out0_0[p1] = r;
 out0_0[p1 + 2] = r1;
 out0_0[p1 + 4] = r2;
 out0_0[p1 + 6] = r3;
}
