fn dot4I8Packed_words_lanes(A: vec4i, B: vec4i) -> vec4i {
    return vec4i(
        dot4I8Packed(bitcast<u32>(A.x), bitcast<u32>(B.x)),
        dot4I8Packed(bitcast<u32>(A.y), bitcast<u32>(B.y)),
        dot4I8Packed(bitcast<u32>(A.z), bitcast<u32>(B.z)),
        dot4I8Packed(bitcast<u32>(A.w), bitcast<u32>(B.w)),
    );
}

// matmul_of_words: /matmul_of_words
@group(0) @binding(0) var<storage, read_write> a_0: array<vec4i>;
@group(0) @binding(1) var<storage, read_write> b_0: array<vec4i>;
@group(0) @binding(2) var<storage, read_write> out0_0: array<vec4i>;
var<workgroup> b_shared_0: array<vec4i, 72>;
@compute @workgroup_size(8, 8)
fn matmul_of_words(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
 let bx = i32(workgroup.x);
 let ty = i32(thread.y);
 let tx = i32(thread.x);
 let p = tx + (tx >> 1u) * 16;
 let p1 = ty * 32 + tx;
 var r = vec4i();
 var r1 = vec4i();
 var r2 = vec4i();
 var r3 = vec4i();
 let ty1 = i32(thread.y);
 let tx1 = i32(thread.x);
 b_shared_0[ty1 * 8 + (ty1 >> 1u) * 2 + tx1] = b_0[ty1 * 8 + tx1];
 workgroupBarrier();
 let r4 = b_shared_0[p];
 let r12 = a_0[ty * 8];
 r = dot4I8Packed_words_lanes(vec4i(r12.x), r4) + r;
 let r13 = a_0[ty * 8 + 2];
 r1 = dot4I8Packed_words_lanes(vec4i(r13.x), r4) + r1;
 let r14 = a_0[ty * 8 + 4];
 r2 = dot4I8Packed_words_lanes(vec4i(r14.x), r4) + r2;
 let r15 = a_0[ty * 8 + 6];
 r3 = dot4I8Packed_words_lanes(vec4i(r15.x), r4) + r3;
 let r5 = b_shared_0[p + 2];
 r = dot4I8Packed_words_lanes(vec4i(r12.y), r5) + r;
 r1 = dot4I8Packed_words_lanes(vec4i(r13.y), r5) + r1;
 r2 = dot4I8Packed_words_lanes(vec4i(r14.y), r5) + r2;
 r3 = dot4I8Packed_words_lanes(vec4i(r15.y), r5) + r3;
 let r6 = b_shared_0[p + 4];
 r = dot4I8Packed_words_lanes(vec4i(r12.z), r6) + r;
 r1 = dot4I8Packed_words_lanes(vec4i(r13.z), r6) + r1;
 r2 = dot4I8Packed_words_lanes(vec4i(r14.z), r6) + r2;
 r3 = dot4I8Packed_words_lanes(vec4i(r15.z), r6) + r3;
 let r7 = b_shared_0[p + 6];
 r = dot4I8Packed_words_lanes(vec4i(r12.w), r7) + r;
 r1 = dot4I8Packed_words_lanes(vec4i(r13.w), r7) + r1;
 r2 = dot4I8Packed_words_lanes(vec4i(r14.w), r7) + r2;
 r3 = dot4I8Packed_words_lanes(vec4i(r15.w), r7) + r3;
 let r8 = b_shared_0[p + 8];
 let r16 = a_0[ty * 8 + 1];
 r = dot4I8Packed_words_lanes(vec4i(r16.x), r8) + r;
 let r17 = a_0[ty * 8 + 3];
 r1 = dot4I8Packed_words_lanes(vec4i(r17.x), r8) + r1;
 let r18 = a_0[ty * 8 + 5];
 r2 = dot4I8Packed_words_lanes(vec4i(r18.x), r8) + r2;
 let r19 = a_0[ty * 8 + 7];
 r3 = dot4I8Packed_words_lanes(vec4i(r19.x), r8) + r3;
 let r9 = b_shared_0[p + 10];
 r = dot4I8Packed_words_lanes(vec4i(r16.y), r9) + r;
 r1 = dot4I8Packed_words_lanes(vec4i(r17.y), r9) + r1;
 r2 = dot4I8Packed_words_lanes(vec4i(r18.y), r9) + r2;
 r3 = dot4I8Packed_words_lanes(vec4i(r19.y), r9) + r3;
 let r10 = b_shared_0[p + 12];
 r = dot4I8Packed_words_lanes(vec4i(r16.z), r10) + r;
 r1 = dot4I8Packed_words_lanes(vec4i(r17.z), r10) + r1;
 r2 = dot4I8Packed_words_lanes(vec4i(r18.z), r10) + r2;
 r3 = dot4I8Packed_words_lanes(vec4i(r19.z), r10) + r3;
 let r11 = b_shared_0[p + 14];
 r = dot4I8Packed_words_lanes(vec4i(r16.w), r11) + r;
 r1 = dot4I8Packed_words_lanes(vec4i(r17.w), r11) + r1;
 r2 = dot4I8Packed_words_lanes(vec4i(r18.w), r11) + r2;
 r3 = dot4I8Packed_words_lanes(vec4i(r19.w), r11) + r3;
 out0_0[p1] = r;
 out0_0[p1 + 8] = r1;
 out0_0[p1 + 16] = r2;
 out0_0[p1 + 24] = r3;
}
