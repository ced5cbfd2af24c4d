fn is_nan_f32x4(x: vec4f) -> vec4<bool> {
    return (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) > vec4u(0x7f800000u);
}

fn at_least_f32x4(a: vec4f, b: vec4f) -> vec4f {
    return select(max(a, b), a, is_nan_f32x4(a));
}

// matmul: /matmul
@group(0) @binding(0) var<storage, read_write> a_0: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> b_0: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> c_0: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> out0_0: array<vec4f>;
@compute @workgroup_size(4, 8)
fn matmul(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let bx = i32(workgroup.x);
 let ty = i32(thread.y);
 let tx = i32(thread.x);
 let p = ty * 32;
 let p1 = tx * 64;
 let p2 = ty * 32 + tx * 2;
 var r = vec4f();
 var r1 = vec4f();
 var r2 = vec4f();
 var r3 = vec4f();
 var r4 = vec4f();
 var r5 = vec4f();
 var r6 = vec4f();
 var r7 = vec4f();
 for (var k = 0; k < 8; k++) {
  let p3 = p + k;
  let r18 = a_0[p3];
  let r8 = b_0[p1 + k * 8];
  r += r18.x * r8;
  let r9 = b_0[p1 + k * 8 + 1];
  r1 += r18.x * r9;
  let r19 = a_0[p3 + 8];
  r2 += r19.x * r8;
  r3 += r19.x * r9;
  let r20 = a_0[p3 + 16];
  r4 += r20.x * r8;
  r5 += r20.x * r9;
  let r21 = a_0[p3 + 24];
  r6 += r21.x * r8;
  r7 += r21.x * r9;
  let r10 = b_0[p1 + k * 8 + 2];
  r += r18.y * r10;
  let r11 = b_0[p1 + k * 8 + 3];
  r1 += r18.y * r11;
  r2 += r19.y * r10;
  r3 += r19.y * r11;
  r4 += r20.y * r10;
  r5 += r20.y * r11;
  r6 += r21.y * r10;
  r7 += r21.y * r11;
  let r12 = b_0[p1 + k * 8 + 4];
  r += r18.z * r12;
  let r13 = b_0[p1 + k * 8 + 5];
  r1 += r18.z * r13;
  r2 += r19.z * r12;
  r3 += r19.z * r13;
  r4 += r20.z * r12;
  r5 += r20.z * r13;
  r6 += r21.z * r12;
  r7 += r21.z * r13;
  let r14 = b_0[p1 + k * 8 + 6];
  r += r18.w * r14;
  let r15 = b_0[p1 + k * 8 + 7];
  r1 += r18.w * r15;
  r2 += r19.w * r14;
  r3 += r19.w * r15;
  r4 += r20.w * r14;
  r5 += r20.w * r15;
  r6 += r21.w * r14;
  r7 += r21.w * r15;
 }
 let r16 = c_0[tx * 2];
 out0_0[p2] = at_least_f32x4(r + r16, vec4f());
 let r17 = c_0[tx * 2 + 1];
 out0_0[p2 + 1] = at_least_f32x4(r1 + r17, vec4f());
 out0_0[p2 + 8] = at_least_f32x4(r2 + r16, vec4f());
 out0_0[p2 + 9] = at_least_f32x4(r3 + r17, vec4f());
 out0_0[p2 + 16] = at_least_f32x4(r4 + r16, vec4f());
 out0_0[p2 + 17] = at_least_f32x4(r5 + r17, vec4f());
 out0_0[p2 + 24] = at_least_f32x4(r6 + r16, vec4f());
 out0_0[p2 + 25] = at_least_f32x4(r7 + r17, vec4f());
}
