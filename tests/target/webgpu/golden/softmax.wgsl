var<private> infinity_bits: u32 = 0x7f800000u;

// softmax: /softmax
@group(0) @binding(0) var<storage, read_write> x_0: array<f32>;
@group(0) @binding(1) var<storage, read_write> out0_0: array<f32>;
@compute @workgroup_size(5)
fn softmax(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let bx = i32(workgroup.x);
 let tx = i32(thread.x);
 let p = tx * 40;
 var r = bitcast<f32>(infinity_bits | 0x80000000u);
 for (var k = 0; k < 40; k++) {
  r = max(r, x_0[p + k]);
 }
 var r1 = 0.0f;
 for (var k1 = 0; k1 < 40; k1++) {
  r1 += exp(x_0[p + k1] - r);
 }
 let v = 1.0f / r1;
 let p1 = tx * 40;
 for (var k2 = 0; k2 < 40; k2++) {
  let p2 = p1 + k2;
  out0_0[p2] = exp(x_0[p2] - r) * v;
 }
}
