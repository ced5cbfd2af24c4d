fn is_nan_f32x4(x: vec4f) -> vec4<bool> {
    return (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) > vec4u(0x7f800000u);
}

fn at_least_f32x4(a: vec4f, b: vec4f) -> vec4f {
    return select(max(a, b), a, is_nan_f32x4(a));
}

// depthwise: /depthwise
@group(0) @binding(0) var<storage, read_write> x_0: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> w_0: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> b_0: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> out0_0: array<vec4f>;
@compute @workgroup_size(32)
fn depthwise(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let bx = i32(workgroup.x);
 let tx = i32(thread.x);
 let p = tx & 1;
 let p1 = tx + (tx >> 1u) * 6 + (tx >> 2u) * 4;
 let p2 = tx + (tx >> 1u) * 6;
 var r = vec4f();
 var r1 = vec4f();
 var r2 = vec4f();
 var r3 = vec4f();
 let r4 = w_0[p];
 r += x_0[p1] * r4;
 let r5 = x_0[p1 + 2];
 r1 += r5 * r4;
 let r6 = x_0[p1 + 4];
 r2 += r6 * r4;
 let r7 = x_0[p1 + 6];
 r3 += r7 * r4;
 let r8 = w_0[p + 2];
 r += r5 * r8;
 r1 += r6 * r8;
 r2 += r7 * r8;
 let r9 = x_0[p1 + 8];
 r3 += r9 * r8;
 let r10 = w_0[p + 4];
 r += r6 * r10;
 r1 += r7 * r10;
 r2 += r9 * r10;
 r3 += x_0[p1 + 10] * r10;
 let r11 = w_0[p + 6];
 r += x_0[p1 + 20] * r11;
 let r12 = x_0[p1 + 22];
 r1 += r12 * r11;
 let r13 = x_0[p1 + 24];
 r2 += r13 * r11;
 let r14 = x_0[p1 + 26];
 r3 += r14 * r11;
 let r15 = w_0[p + 8];
 r += r12 * r15;
 r1 += r13 * r15;
 r2 += r14 * r15;
 let r16 = x_0[p1 + 28];
 r3 += r16 * r15;
 let r17 = w_0[p + 10];
 r += r13 * r17;
 r1 += r14 * r17;
 r2 += r16 * r17;
 r3 += x_0[p1 + 30] * r17;
 let r18 = w_0[p + 12];
 r += x_0[p1 + 40] * r18;
 let r19 = x_0[p1 + 42];
 r1 += r19 * r18;
 let r20 = x_0[p1 + 44];
 r2 += r20 * r18;
 let r21 = x_0[p1 + 46];
 r3 += r21 * r18;
 let r22 = w_0[p + 14];
 r += r19 * r22;
 r1 += r20 * r22;
 r2 += r21 * r22;
 let r23 = x_0[p1 + 48];
 r3 += r23 * r22;
 let r24 = w_0[p + 16];
 r += r20 * r24;
 r1 += r21 * r24;
 r2 += r23 * r24;
 r3 += x_0[p1 + 50] * r24;
 let r25 = b_0[p];
 out0_0[p2] = at_least_f32x4(r + r25, vec4f());
 out0_0[p2 + 2] = at_least_f32x4(r1 + r25, vec4f());
 out0_0[p2 + 4] = at_least_f32x4(r2 + r25, vec4f());
 out0_0[p2 + 6] = at_least_f32x4(r3 + r25, vec4f());
}
