// column_sums: /column_sums
@group(0) @binding(0) var<storage, read_write> x_0: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> out0_0: array<vec4f>;
var<workgroup> sum_rf_0: array<vec4f, 160>;
var<workgroup> sum_rf_1_0: array<vec4f, 40>;
var<workgroup> sum_rf_2_0: array<vec4f, 10>;
@compute @workgroup_size(5, 32)
fn column_sums(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let bx = i32(workgroup.x);
 let ty = i32(thread.y);
 let tx = i32(thread.x);
 let p = bx * 5 + tx + ty * 10;
 var r1 = vec4f();
 for (var k = 0; k < 2; k++) {
  let p1 = p + k * 2560;
  r1 += x_0[p1];
  let p2 = k * 256 + ty;
  let p3 = p + k * 2560;
  r1 += select(vec4f(), x_0[p3 + 320], p2 + 32 < 300);
  r1 += select(vec4f(), x_0[p3 + 640], p2 + 64 < 300);
  r1 += select(vec4f(), x_0[p3 + 960], p2 + 96 < 300);
  r1 += select(vec4f(), x_0[p3 + 1280], p2 + 128 < 300);
  r1 += select(vec4f(), x_0[p3 + 1600], p2 + 160 < 300);
  r1 += select(vec4f(), x_0[p3 + 1920], p2 + 192 < 300);
  r1 += select(vec4f(), x_0[p3 + 2240], p2 + 224 < 300);
 }
 sum_rf_0[tx + ty * 5] = r1;
 workgroupBarrier();
 let ty1 = i32(thread.y);
 if (ty1 < 8) {
  let tx1 = i32(thread.x);
  let p4 = tx1 + ty1 * 5;
  var r2 = vec4f();
  r2 += sum_rf_0[p4];
  r2 += sum_rf_0[p4 + 40];
  r2 += sum_rf_0[p4 + 80];
  r2 += sum_rf_0[p4 + 120];
  sum_rf_1_0[p4] = r2;
 }
 workgroupBarrier();
 let ty2 = i32(thread.y);
 if (ty2 < 2) {
  let tx2 = i32(thread.x);
  let p5 = tx2 + ty2 * 5;
  var r3 = vec4f();
  r3 += sum_rf_1_0[p5];
  r3 += sum_rf_1_0[p5 + 10];
  r3 += sum_rf_1_0[p5 + 20];
  r3 += sum_rf_1_0[p5 + 30];
  sum_rf_2_0[p5] = r3;
 }
 let r4 = vec4f(0.5f);
 workgroupBarrier();
 let tx3 = i32(thread.x);
 var r = vec4f();
 r += sum_rf_2_0[tx3];
 r += sum_rf_2_0[tx3 + 5];
 out0_0[bx * 5 + tx3] = r * r4;
}
