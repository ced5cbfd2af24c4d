// transpose: /transpose
@group(0) @binding(0) var<storage, read_write> x_0: array<f32>;
@group(0) @binding(1) var<storage, read_write> out0_0: array<f32>;
@compute @workgroup_size(64)
fn transpose_(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let bx = i32(workgroup.x);
 let tx = i32(thread.x);
 let p = bx * 64 + tx;
 out0_0[bx * 64 + tx] = x_0[bx * 4096 + tx * 64 - p / 3 * 191];
}
