// layer_norm: /layer_norm
@group(0) @binding(0) var<storage, read_write> x_0: array<f32>;
@group(0) @binding(1) var<storage, read_write> g_0: array<f32>;
@group(0) @binding(2) var<storage, read_write> b_0: array<f32>;
@group(0) @binding(3) var<storage, read_write> out0_0: array<f32>;
@group(0) @binding(4) var<uniform> symbols_0: array<vec4<i32>, 1>;
@compute @workgroup_size(64)
fn layer_norm(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u, @builtin(num_workgroups) workgroups: vec3u) {
 let s = symbols_0[0].x;
 var r: f32;
 var r1: f32;
 let group = i32(workgroup.x + workgroup.y * workgroups.x);
 if (group < ((s * 3 + 63) >> 6u)) {
  let bx = group;
  let tx = i32(thread.x);
  let p = bx * 576 + tx * 9;
  let p1 = bx * 64 + tx;
  if (p1 / 3 < s) {
   r = 0.0f;
   for (var k = 0; k < 9; k++) {
    r += x_0[p + k];
   }
   r1 = 0.0f;
   let v = r * 0x1.c71c72p-4f;
   let p2 = bx * 576 + tx * 9;
   for (var k1 = 0; k1 < 9; k1++) {
    let v1 = x_0[p2 + k1] - v;
    r1 += v1 * v1;
   }
  }
  if (bx * 64 + tx < s * 3) {
   let v2 = sqrt(r1 * 0x1.c71c72p-4f + 0x1.4f8b58p-17f);
   let v3 = r * 0x1.c71c72p-4f;
   let p3 = bx * 576 + tx * 9;
   for (var k2 = 0; k2 < 9; k2++) {
    let p4 = p3 + k2;
    out0_0[p4] = (x_0[p4] - v3) / v2 * g_0[k2] + b_0[k2];
   }
  }
 }
}
