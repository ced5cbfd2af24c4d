// column_sums: /column_sums
@group(0) @binding(0) var<storage, read_write> x_0: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> out0_0: array<vec4f>;
var<workgroup> sum_rf_0: array<vec4f, 256>;
var<workgroup> sum_rf_1_0: array<vec4f, 64>;
var<workgroup> sum_rf_2_0: array<vec4f, 16>;
var<workgroup> sum_rf_3_0: array<vec4f, 4>;
@compute @workgroup_size(2, 128)
fn column_sums(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let bx = i32(workgroup.x);
 let ty = i32(thread.y);
 let tx = i32(thread.x);
 let p = bx * 2 + tx + ty * 10;
 var r1 = vec4f();
 r1 += x_0[p];
 r1 += x_0[p + 1280];
 r1 += select(vec4f(), x_0[p + 2560], ty + 256 < 300);
 sum_rf_0[tx + ty * 2] = r1;
 workgroupBarrier();
 let ty1 = i32(thread.y);
 if (ty1 < 32) {
  let tx1 = i32(thread.x);
  let p1 = tx1 + ty1 * 2;
  var r2 = vec4f();
  r2 += sum_rf_0[p1];
  r2 += sum_rf_0[p1 + 64];
  r2 += sum_rf_0[p1 + 128];
  r2 += sum_rf_0[p1 + 192];
  sum_rf_1_0[p1] = r2;
 }
 workgroupBarrier();
 let ty2 = i32(thread.y);
 if (ty2 < 8) {
  let tx2 = i32(thread.x);
  let p2 = tx2 + ty2 * 2;
  var r3 = vec4f();
  r3 += sum_rf_1_0[p2];
  r3 += sum_rf_1_0[p2 + 16];
  r3 += sum_rf_1_0[p2 + 32];
  r3 += sum_rf_1_0[p2 + 48];
  sum_rf_2_0[p2] = r3;
 }
 workgroupBarrier();
 let ty3 = i32(thread.y);
 if (ty3 < 2) {
  let tx3 = i32(thread.x);
  let p3 = tx3 + ty3 * 2;
  var r4 = vec4f();
  r4 += sum_rf_2_0[p3];
  r4 += sum_rf_2_0[p3 + 4];
  r4 += sum_rf_2_0[p3 + 8];
  r4 += sum_rf_2_0[p3 + 12];
  sum_rf_3_0[p3] = r4;
 }
 let r5 = vec4f(0.5f);
 workgroupBarrier();
 let tx4 = i32(thread.x);
 var r = vec4f();
 r += sum_rf_3_0[tx4];
 r += sum_rf_3_0[tx4 + 2];
 out0_0[bx * 2 + tx4] = r * r5;
}
