var<private> infinity_bits: u32 = 0x7f800000u;

// softmax: /softmax
@group(0) @binding(0) var<storage, read_write> x_0: array<f32>;
@group(0) @binding(1) var<storage, read_write> out0_0: array<f32>;
@compute @workgroup_size(5)
fn softmax(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>) {
 let bx = i32(workgroup.x);
 let tx = i32(thread.x);
 let p = tx * 40;
 var r = bitcast<f32>(infinity_bits | 0x80000000u);
 for (var k = 0; k < 40; k++) {
  r = max(r, x_0[p + k]);
 }
 var r_1 = 0.0f;
 for (var k_1 = 0; k_1 < 40; k_1++) {
  r_1 += exp(x_0[p + k_1] - r);
 }
 for (var k_2 = 0; k_2 < 40; k_2++) {
  let p_1 = p + k_2;
  out0_0[p_1] = exp(x_0[p_1] - r) / r_1;
 }
}
