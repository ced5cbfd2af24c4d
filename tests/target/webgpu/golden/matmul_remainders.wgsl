// matmul_remainders: /matmul_remainders
@group(0) @binding(0) var<storage, read_write> a_0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b_0: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> c_0: array<f32>;
@group(0) @binding(3) var<storage, read_write> out0_0: array<f32>;
@compute @workgroup_size(2)
fn matmul_remainders(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>) {
 let group = i32(workgroup.x + workgroup.y * workgroups.x);
 if (group < 1) {
  let bx = group;
  let ty = i32(thread.y);
  let tx = i32(thread.x);
  if (tx < 1) {
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
    let r_27 = vec4f(a_0[k * 3]);
    let r_28 = b_0[k * 6];
    r += r_27 * r_28;
    let r_29 = b_0[k * 6 + 1];
    r_1 += r_27 * r_29;
    let r_30 = vec4f(a_0[k * 3 + 6]);
    r_2 += r_30 * r_28;
    r_3 += r_30 * r_29;
    let r_31 = vec4f(a_0[k * 3 + 12]);
    r_4 += r_31 * r_28;
    r_5 += r_31 * r_29;
    let r_32 = vec4f(a_0[k * 3 + 18]);
    r_6 += r_32 * r_28;
    r_7 += r_32 * r_29;
    let r_33 = vec4f(a_0[k * 3 + 24]);
    r_8 += r_33 * r_28;
    r_9 += r_33 * r_29;
    let r_34 = vec4f(a_0[k * 3 + 30]);
    r_10 += r_34 * r_28;
    r_11 += r_34 * r_29;
    let r_35 = vec4f(a_0[k * 3 + 36]);
    r_12 += r_35 * r_28;
    r_13 += r_35 * r_29;
    let r_36 = vec4f(a_0[k * 3 + 42]);
    r_14 += r_36 * r_28;
    r_15 += r_36 * r_29;
    let r_37 = vec4f(a_0[k * 3 + 1]);
    let r_38 = b_0[k * 6 + 2];
    r += r_37 * r_38;
    let r_39 = b_0[k * 6 + 3];
    r_1 += r_37 * r_39;
    let r_40 = vec4f(a_0[k * 3 + 7]);
    r_2 += r_40 * r_38;
    r_3 += r_40 * r_39;
    let r_41 = vec4f(a_0[k * 3 + 13]);
    r_4 += r_41 * r_38;
    r_5 += r_41 * r_39;
    let r_42 = vec4f(a_0[k * 3 + 19]);
    r_6 += r_42 * r_38;
    r_7 += r_42 * r_39;
    let r_43 = vec4f(a_0[k * 3 + 25]);
    r_8 += r_43 * r_38;
    r_9 += r_43 * r_39;
    let r_44 = vec4f(a_0[k * 3 + 31]);
    r_10 += r_44 * r_38;
    r_11 += r_44 * r_39;
    let r_45 = vec4f(a_0[k * 3 + 37]);
    r_12 += r_45 * r_38;
    r_13 += r_45 * r_39;
    let r_46 = vec4f(a_0[k * 3 + 43]);
    r_14 += r_46 * r_38;
    r_15 += r_46 * r_39;
    let r_47 = vec4f(a_0[k * 3 + 2]);
    let r_48 = b_0[k * 6 + 4];
    r += r_47 * r_48;
    let r_49 = b_0[k * 6 + 5];
    r_1 += r_47 * r_49;
    let r_50 = vec4f(a_0[k * 3 + 8]);
    r_2 += r_50 * r_48;
    r_3 += r_50 * r_49;
    let r_51 = vec4f(a_0[k * 3 + 14]);
    r_4 += r_51 * r_48;
    r_5 += r_51 * r_49;
    let r_52 = vec4f(a_0[k * 3 + 20]);
    r_6 += r_52 * r_48;
    r_7 += r_52 * r_49;
    let r_53 = vec4f(a_0[k * 3 + 26]);
    r_8 += r_53 * r_48;
    r_9 += r_53 * r_49;
    let r_54 = vec4f(a_0[k * 3 + 32]);
    r_10 += r_54 * r_48;
    r_11 += r_54 * r_49;
    let r_55 = vec4f(a_0[k * 3 + 38]);
    r_12 += r_55 * r_48;
    r_13 += r_55 * r_49;
    let r_56 = vec4f(a_0[k * 3 + 44]);
    r_14 += r_56 * r_48;
    r_15 += r_56 * r_49;
   }
   let r_57 = vec4f(c_0[0], c_0[1], c_0[2], c_0[3]);
   {
    let vector = max(r + r_57, vec4f());
    out0_0[0] = vector.x;
    out0_0[1] = vector.y;
    out0_0[2] = vector.z;
    out0_0[3] = vector.w;
   }
   let r_58 = vec4f(c_0[4], c_0[5], c_0[6], c_0[7]);
   {
    let vector = max(r_1 + r_58, vec4f());
    out0_0[4] = vector.x;
    out0_0[5] = vector.y;
    out0_0[6] = vector.z;
    out0_0[7] = vector.w;
   }
   {
    let vector = max(r_2 + r_57, vec4f());
    out0_0[10] = vector.x;
    out0_0[11] = vector.y;
    out0_0[12] = vector.z;
    out0_0[13] = vector.w;
   }
   {
    let vector = max(r_3 + r_58, vec4f());
    out0_0[14] = vector.x;
    out0_0[15] = vector.y;
    out0_0[16] = vector.z;
    out0_0[17] = vector.w;
   }
   {
    let vector = max(r_4 + r_57, vec4f());
    out0_0[20] = vector.x;
    out0_0[21] = vector.y;
    out0_0[22] = vector.z;
    out0_0[23] = vector.w;
   }
   {
    let vector = max(r_5 + r_58, vec4f());
    out0_0[24] = vector.x;
    out0_0[25] = vector.y;
    out0_0[26] = vector.z;
    out0_0[27] = vector.w;
   }
   {
    let vector = max(r_6 + r_57, vec4f());
    out0_0[30] = vector.x;
    out0_0[31] = vector.y;
    out0_0[32] = vector.z;
    out0_0[33] = vector.w;
   }
   {
    let vector = max(r_7 + r_58, vec4f());
    out0_0[34] = vector.x;
    out0_0[35] = vector.y;
    out0_0[36] = vector.z;
    out0_0[37] = vector.w;
   }
   {
    let vector = max(r_8 + r_57, vec4f());
    out0_0[40] = vector.x;
    out0_0[41] = vector.y;
    out0_0[42] = vector.z;
    out0_0[43] = vector.w;
   }
   {
    let vector = max(r_9 + r_58, vec4f());
    out0_0[44] = vector.x;
    out0_0[45] = vector.y;
    out0_0[46] = vector.z;
    out0_0[47] = vector.w;
   }
   {
    let vector = max(r_10 + r_57, vec4f());
    out0_0[50] = vector.x;
    out0_0[51] = vector.y;
    out0_0[52] = vector.z;
    out0_0[53] = vector.w;
   }
   {
    let vector = max(r_11 + r_58, vec4f());
    out0_0[54] = vector.x;
    out0_0[55] = vector.y;
    out0_0[56] = vector.z;
    out0_0[57] = vector.w;
   }
   {
    let vector = max(r_12 + r_57, vec4f());
    out0_0[60] = vector.x;
    out0_0[61] = vector.y;
    out0_0[62] = vector.z;
    out0_0[63] = vector.w;
   }
   {
    let vector = max(r_13 + r_58, vec4f());
    out0_0[64] = vector.x;
    out0_0[65] = vector.y;
    out0_0[66] = vector.z;
    out0_0[67] = vector.w;
   }
   {
    let vector = max(r_14 + r_57, vec4f());
    out0_0[70] = vector.x;
    out0_0[71] = vector.y;
    out0_0[72] = vector.z;
    out0_0[73] = vector.w;
   }
   {
    let vector = max(r_15 + r_58, vec4f());
    out0_0[74] = vector.x;
    out0_0[75] = vector.y;
    out0_0[76] = vector.z;
    out0_0[77] = vector.w;
   }
  }
 }
 if (group >= 1 && group < 2) {
  let bx_1 = (group - 1);
  let ty_1 = i32(thread.y);
  let tx_1 = i32(thread.x);
  if (tx_1 < 1) {
   var r_24 = vec4f();
   var r_25 = vec4f();
   for (var k_1 = 0; k_1 < 2; k_1++) {
    let r_59 = vec4f(a_0[k_1 * 3 + 48]);
    r_24 += r_59 * b_0[k_1 * 6];
    r_25 += r_59 * b_0[k_1 * 6 + 1];
    let r_60 = vec4f(a_0[k_1 * 3 + 49]);
    r_24 += r_60 * b_0[k_1 * 6 + 2];
    r_25 += r_60 * b_0[k_1 * 6 + 3];
    let r_61 = vec4f(a_0[k_1 * 3 + 50]);
    r_24 += r_61 * b_0[k_1 * 6 + 4];
    r_25 += r_61 * b_0[k_1 * 6 + 5];
   }
   {
    let vector = max(r_24 + vec4f(c_0[0], c_0[1], c_0[2], c_0[3]), vec4f());
    out0_0[80] = vector.x;
    out0_0[81] = vector.y;
    out0_0[82] = vector.z;
    out0_0[83] = vector.w;
   }
   {
    let vector = max(r_25 + vec4f(c_0[4], c_0[5], c_0[6], c_0[7]), vec4f());
    out0_0[84] = vector.x;
    out0_0[85] = vector.y;
    out0_0[86] = vector.z;
    out0_0[87] = vector.w;
   }
  }
 }
 if (group >= 2 && group < 3) {
  let bx_2 = (group - 2);
  let ty_2 = i32(thread.y);
  let tx_2 = i32(thread.x);
  var r_16 = 0.0f;
  var r_17 = 0.0f;
  var r_18 = 0.0f;
  var r_19 = 0.0f;
  var r_20 = 0.0f;
  var r_21 = 0.0f;
  var r_22 = 0.0f;
  var r_23 = 0.0f;
  for (var k_2 = 0; k_2 < 2; k_2++) {
   let p = tx_2 + k_2 * 24;
   let v = b_0[(p + 48) >> 2u][(p + 48) & 3];
   let p_1 = tx_2 + k_2 * 24;
   r_16 += a_0[k_2 * 3] * v;
   r_17 += a_0[k_2 * 3 + 6] * v;
   r_18 += a_0[k_2 * 3 + 12] * v;
   r_19 += a_0[k_2 * 3 + 18] * v;
   r_20 += a_0[k_2 * 3 + 24] * v;
   r_21 += a_0[k_2 * 3 + 30] * v;
   r_22 += a_0[k_2 * 3 + 36] * v;
   r_23 += a_0[k_2 * 3 + 42] * v;
   let v_1 = b_0[(p_1 + 56) >> 2u][(p_1 + 56) & 3];
   let p_2 = tx_2 + k_2 * 24;
   r_16 += a_0[k_2 * 3 + 1] * v_1;
   r_17 += a_0[k_2 * 3 + 7] * v_1;
   r_18 += a_0[k_2 * 3 + 13] * v_1;
   r_19 += a_0[k_2 * 3 + 19] * v_1;
   r_20 += a_0[k_2 * 3 + 25] * v_1;
   r_21 += a_0[k_2 * 3 + 31] * v_1;
   r_22 += a_0[k_2 * 3 + 37] * v_1;
   r_23 += a_0[k_2 * 3 + 43] * v_1;
   let v_2 = b_0[(p_2 + 64) >> 2u][(p_2 + 64) & 3];
   r_16 += a_0[k_2 * 3 + 2] * v_2;
   r_17 += a_0[k_2 * 3 + 8] * v_2;
   r_18 += a_0[k_2 * 3 + 14] * v_2;
   r_19 += a_0[k_2 * 3 + 20] * v_2;
   r_20 += a_0[k_2 * 3 + 26] * v_2;
   r_21 += a_0[k_2 * 3 + 32] * v_2;
   r_22 += a_0[k_2 * 3 + 38] * v_2;
   r_23 += a_0[k_2 * 3 + 44] * v_2;
  }
  let v_3 = c_0[tx_2 + 8];
  out0_0[tx_2 + 8] = max(r_16 + v_3, 0.0f);
  out0_0[tx_2 + 18] = max(r_17 + v_3, 0.0f);
  out0_0[tx_2 + 28] = max(r_18 + v_3, 0.0f);
  out0_0[tx_2 + 38] = max(r_19 + v_3, 0.0f);
  out0_0[tx_2 + 48] = max(r_20 + v_3, 0.0f);
  out0_0[tx_2 + 58] = max(r_21 + v_3, 0.0f);
  out0_0[tx_2 + 68] = max(r_22 + v_3, 0.0f);
  out0_0[tx_2 + 78] = max(r_23 + v_3, 0.0f);
 }
 if (group >= 3 && group < 4) {
  let bx_3 = (group - 3);
  let ty_3 = i32(thread.y);
  let tx_3 = i32(thread.x);
  var r_26 = 0.0f;
  for (var k_3 = 0; k_3 < 2; k_3++) {
   let p_3 = tx_3 + k_3 * 24;
   r_26 += a_0[k_3 * 3 + 48] * b_0[(p_3 + 48) >> 2u][(p_3 + 48) & 3];
   r_26 += a_0[k_3 * 3 + 49] * b_0[(p_3 + 56) >> 2u][(p_3 + 56) & 3];
   r_26 += a_0[k_3 * 3 + 50] * b_0[(p_3 + 64) >> 2u][(p_3 + 64) & 3];
  }
  out0_0[tx_3 + 88] = max(r_26 + c_0[tx_3 + 8], 0.0f);
 }
}
