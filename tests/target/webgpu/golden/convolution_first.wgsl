fn is_nan_f32x4(x: vec4f) -> vec4<bool> {
    return (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) > vec4u(0x7f800000u);
}

fn at_least_f32x4(a: vec4f, b: vec4f) -> vec4f {
    return select(max(a, b), a, is_nan_f32x4(a));
}

// convolution_first: /convolution_first
@group(0) @binding(0) var<storage, read_write> x_0: array<f32>;
@group(0) @binding(1) var<storage, read_write> w_0: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> b_0: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> r_0: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> out0_0: array<vec4f>;
@compute @workgroup_size(2, 12)
fn convolution_first(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let group = i32(workgroup.x);
 if (group < 1) {
  let bx = group;
  let ty = i32(thread.y);
  let tx = i32(thread.x);
  let p = ty * 24 + ty * 4 / 7 * 48;
  let p1 = (ty * 4 + 1) / 7 * 48 + ty * 24;
  let p2 = (ty * 4 + 2) / 7 * 48 + ty * 24;
  let p3 = (ty * 4 + 3) / 7 * 48 + ty * 24;
  let p4 = ty * 8 + tx;
  var r1 = vec4f();
  var r2 = vec4f();
  var r3 = vec4f();
  var r4 = vec4f();
  for (var k = 0; k < 3; k++) {
   let p5 = tx + k * 18;
   let p6 = p + k * 45;
   let p7 = p1 + k * 45;
   let p8 = p2 + k * 45;
   let p9 = p3 + k * 45;
   for (var k1 = 0; k1 < 3; k1++) {
    let p10 = p5 + k1 * 6;
    let r6 = w_0[p10];
    r1 += x_0[p6 + k1 * 3] * r6;
    r2 += x_0[p7 + k1 * 3 + 6] * r6;
    r3 += x_0[p8 + k1 * 3 + 12] * r6;
    r4 += x_0[p9 + k1 * 3 + 18] * r6;
    let r7 = w_0[p10 + 2];
    r1 += x_0[p6 + k1 * 3 + 1] * r7;
    r2 += x_0[p7 + k1 * 3 + 7] * r7;
    r3 += x_0[p8 + k1 * 3 + 13] * r7;
    r4 += x_0[p9 + k1 * 3 + 19] * r7;
    let r8 = w_0[p10 + 4];
    r1 += x_0[p6 + k1 * 3 + 2] * r8;
    r2 += x_0[p7 + k1 * 3 + 8] * r8;
    r3 += x_0[p8 + k1 * 3 + 14] * r8;
    r4 += x_0[p9 + k1 * 3 + 20] * r8;
   }
  }
  let r9 = b_0[tx];
  out0_0[p4] = at_least_f32x4(r1 + r9 + r_0[p4], vec4f());
  out0_0[p4 + 2] = at_least_f32x4(r2 + r9 + r_0[p4 + 2], vec4f());
  out0_0[p4 + 4] = at_least_f32x4(r3 + r9 + r_0[p4 + 4], vec4f());
  out0_0[p4 + 6] = at_least_f32x4(r4 + r9 + r_0[p4 + 6], vec4f());
 }
 if (group >= 1 && group < 2) {
  let bx1 = (group - 1);
  let ty1 = i32(thread.y);
  if (ty1 < 1) {
   let tx1 = i32(thread.x);
   var r5 = vec4f();
   for (var k2 = 0; k2 < 3; k2++) {
    let p11 = tx1 + k2 * 18;
    let p12 = k2 * 45;
    for (var k3 = 0; k3 < 3; k3++) {
     r5 += x_0[p12 + k3 * 3 + 576] * w_0[p11 + k3 * 6];
     r5 += x_0[p12 + k3 * 3 + 577] * w_0[p11 + k3 * 6 + 2];
     r5 += x_0[p12 + k3 * 3 + 578] * w_0[p11 + k3 * 6 + 4];
    }
   }
   out0_0[tx1 + 96] = at_least_f32x4(r5 + b_0[tx1] + r_0[tx1 + 96], vec4f());
  }
 }
}
