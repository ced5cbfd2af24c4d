// layer_norm: /layer_norm
@group(0) @binding(0) var<storage, read_write> x_0: array<f32>;
@group(0) @binding(1) var<storage, read_write> g_0: array<f32>;
@group(0) @binding(2) var<storage, read_write> b_0: array<f32>;
@group(0) @binding(3) var<storage, read_write> out0_0: array<f32>;
@group(0) @binding(4) var<uniform> symbols_0: array<vec4<i32>, 1>;
@compute @workgroup_size(64)
fn layer_norm(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>) {
 let s = symbols_0[0].x;
 var r: f32;
 var r_1: f32;
 let group = i32(workgroup.x + workgroup.y * workgroups.x);
 if (group < ((s * 3 + 63) >> 6u)) {
  let bx = group;
  let tx = i32(thread.x);
  let p = bx * 576 + tx * 9;
  let p_1 = bx * 64 + tx;
  if (p_1 / 3 < s) {
   r = 0.0f;
   for (var k = 0; k < 9; k++) {
    r += x_0[p + k];
   }
   r_1 = 0.0f;
   let v = r * 0.11111111f;
   let p_2 = bx * 576 + tx * 9;
   for (var k_1 = 0; k_1 < 9; k_1++) {
    let v_1 = x_0[p_2 + k_1] - v;
    r_1 += v_1 * v_1;
   }
  }
  if (bx * 64 + tx < s * 3) {
   let v_2 = sqrt(r_1 * 0.11111111f + 1e-05f);
   let v_3 = r * 0.11111111f;
   let p_3 = bx * 576 + tx * 9;
   for (var k_2 = 0; k_2 < 9; k_2++) {
    let p_4 = p_3 + k_2;
    out0_0[p_4] = (x_0[p_4] - v_3) / v_2 * g_0[k_2] + b_0[k_2];
   }
  }
 }
}
