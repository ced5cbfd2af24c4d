// matmul_symbolic: /matmul_symbolic
@group(0) @binding(0) var<storage, read_write> a_0: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> b_0: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> c_0: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> out0_0: array<vec4f>;
@group(0) @binding(4) var<uniform> symbols_0: array<vec4<i32>, 1>;
@compute @workgroup_size(2, 32)
fn matmul_symbolic(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>) {
 let s = symbols_0[0].x;
 let group = i32(workgroup.x + workgroup.y * workgroups.x);
 if (group < (((s >> 3u) + 31) >> 5u)) {
  let bx = group;
  let ty = i32(thread.y);
  if (bx * 32 + ty < (s >> 3u)) {
   let tx = i32(thread.x);
   let p = bx * 512 + ty * 16;
   let p_1 = tx * 16;
   let p_2 = bx * 1024 + ty * 32 + tx * 2;
   var r = vec4f();
   var r_1 = vec4f();
   var r_2 = vec4f();
   var r_3 = vec4f();
   var r_4 = vec4f();
   var r_5 = vec4f();
   var r_6 = vec4f();
   var r_7 = vec4f();
   var r_8 = vec4f();
   var r_9 = vec4f();
   var r_10 = vec4f();
   var r_11 = vec4f();
   var r_12 = vec4f();
   var r_13 = vec4f();
   var r_14 = vec4f();
   var r_15 = vec4f();
   for (var k = 0; k < 2; k++) {
    let p_3 = p + k;
    let r_28 = a_0[p_3];
    let r_18 = b_0[p_1 + k * 8];
    r += r_28.x * r_18;
    let r_19 = b_0[p_1 + k * 8 + 1];
    r_1 += r_28.x * r_19;
    let r_29 = a_0[p_3 + 2];
    r_2 += r_29.x * r_18;
    r_3 += r_29.x * r_19;
    let r_30 = a_0[p_3 + 4];
    r_4 += r_30.x * r_18;
    r_5 += r_30.x * r_19;
    let r_31 = a_0[p_3 + 6];
    r_6 += r_31.x * r_18;
    r_7 += r_31.x * r_19;
    let r_32 = a_0[p_3 + 8];
    r_8 += r_32.x * r_18;
    r_9 += r_32.x * r_19;
    let r_33 = a_0[p_3 + 10];
    r_10 += r_33.x * r_18;
    r_11 += r_33.x * r_19;
    let r_34 = a_0[p_3 + 12];
    r_12 += r_34.x * r_18;
    r_13 += r_34.x * r_19;
    let r_35 = a_0[p_3 + 14];
    r_14 += r_35.x * r_18;
    r_15 += r_35.x * r_19;
    let r_20 = b_0[p_1 + k * 8 + 2];
    r += r_28.y * r_20;
    let r_21 = b_0[p_1 + k * 8 + 3];
    r_1 += r_28.y * r_21;
    r_2 += r_29.y * r_20;
    r_3 += r_29.y * r_21;
    r_4 += r_30.y * r_20;
    r_5 += r_30.y * r_21;
    r_6 += r_31.y * r_20;
    r_7 += r_31.y * r_21;
    r_8 += r_32.y * r_20;
    r_9 += r_32.y * r_21;
    r_10 += r_33.y * r_20;
    r_11 += r_33.y * r_21;
    r_12 += r_34.y * r_20;
    r_13 += r_34.y * r_21;
    r_14 += r_35.y * r_20;
    r_15 += r_35.y * r_21;
    let r_22 = b_0[p_1 + k * 8 + 4];
    r += r_28.z * r_22;
    let r_23 = b_0[p_1 + k * 8 + 5];
    r_1 += r_28.z * r_23;
    r_2 += r_29.z * r_22;
    r_3 += r_29.z * r_23;
    r_4 += r_30.z * r_22;
    r_5 += r_30.z * r_23;
    r_6 += r_31.z * r_22;
    r_7 += r_31.z * r_23;
    r_8 += r_32.z * r_22;
    r_9 += r_32.z * r_23;
    r_10 += r_33.z * r_22;
    r_11 += r_33.z * r_23;
    r_12 += r_34.z * r_22;
    r_13 += r_34.z * r_23;
    r_14 += r_35.z * r_22;
    r_15 += r_35.z * r_23;
    let r_24 = b_0[p_1 + k * 8 + 6];
    r += r_28.w * r_24;
    let r_25 = b_0[p_1 + k * 8 + 7];
    r_1 += r_28.w * r_25;
    r_2 += r_29.w * r_24;
    r_3 += r_29.w * r_25;
    r_4 += r_30.w * r_24;
    r_5 += r_30.w * r_25;
    r_6 += r_31.w * r_24;
    r_7 += r_31.w * r_25;
    r_8 += r_32.w * r_24;
    r_9 += r_32.w * r_25;
    r_10 += r_33.w * r_24;
    r_11 += r_33.w * r_25;
    r_12 += r_34.w * r_24;
    r_13 += r_34.w * r_25;
    r_14 += r_35.w * r_24;
    r_15 += r_35.w * r_25;
   }
   let r_26 = c_0[tx * 2];
   out0_0[p_2] = max(r + r_26, vec4f());
   let r_27 = c_0[tx * 2 + 1];
   out0_0[p_2 + 1] = max(r_1 + r_27, vec4f());
   out0_0[p_2 + 4] = max(r_2 + r_26, vec4f());
   out0_0[p_2 + 5] = max(r_3 + r_27, vec4f());
   out0_0[p_2 + 8] = max(r_4 + r_26, vec4f());
   out0_0[p_2 + 9] = max(r_5 + r_27, vec4f());
   out0_0[p_2 + 12] = max(r_6 + r_26, vec4f());
   out0_0[p_2 + 13] = max(r_7 + r_27, vec4f());
   out0_0[p_2 + 16] = max(r_8 + r_26, vec4f());
   out0_0[p_2 + 17] = max(r_9 + r_27, vec4f());
   out0_0[p_2 + 20] = max(r_10 + r_26, vec4f());
   out0_0[p_2 + 21] = max(r_11 + r_27, vec4f());
   out0_0[p_2 + 24] = max(r_12 + r_26, vec4f());
   out0_0[p_2 + 25] = max(r_13 + r_27, vec4f());
   out0_0[p_2 + 28] = max(r_14 + r_26, vec4f());
   out0_0[p_2 + 29] = max(r_15 + r_27, vec4f());
  }
 }
 if (group >= (((s >> 3u) + 31) >> 5u) && group < ((((s & 7) + 31) >> 5u) + (((s >> 3u) + 31) >> 5u))) {
  let bx_1 = (group - (((s >> 3u) + 31) >> 5u));
  let ty_1 = i32(thread.y);
  if (ty_1 < (s & 7)) {
   let tx_1 = i32(thread.x);
   let p_4 = ty_1 * 2 + (s >> 3u) * 16;
   let p_5 = tx_1 * 16;
   let p_6 = ty_1 * 4 + tx_1 * 2 + (s >> 3u) * 32;
   var r_16 = vec4f();
   var r_17 = vec4f();
   for (var k_1 = 0; k_1 < 2; k_1++) {
    let r_36 = a_0[p_4 + k_1];
    r_16 += r_36.x * b_0[p_5 + k_1 * 8];
    r_17 += r_36.x * b_0[p_5 + k_1 * 8 + 1];
    r_16 += r_36.y * b_0[p_5 + k_1 * 8 + 2];
    r_17 += r_36.y * b_0[p_5 + k_1 * 8 + 3];
    r_16 += r_36.z * b_0[p_5 + k_1 * 8 + 4];
    r_17 += r_36.z * b_0[p_5 + k_1 * 8 + 5];
    r_16 += r_36.w * b_0[p_5 + k_1 * 8 + 6];
    r_17 += r_36.w * b_0[p_5 + k_1 * 8 + 7];
   }
   out0_0[p_6] = max(r_16 + c_0[tx_1 * 2], vec4f());
   out0_0[p_6 + 1] = max(r_17 + c_0[tx_1 * 2 + 1], vec4f());
  }
 }
}
