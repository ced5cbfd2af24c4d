// add_bias: /add_bias
@group(0) @binding(0) var<storage, read_write> x_0: array<f32>;
@group(0) @binding(1) var<storage, read_write> y_0: array<f32>;
@group(0) @binding(2) var<storage, read_write> out0_0: array<f32>;
@compute @workgroup_size(64)
fn add_bias(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let bx = i32(workgroup.x);
 let tx = i32(thread.x);
 let p = bx * 64 + tx;
 if (p < 240) {
  out0_0[p] = x_0[p] + y_0[p % 10];
 }
}
