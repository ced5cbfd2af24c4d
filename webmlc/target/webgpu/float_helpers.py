"""Define the helper functions of WGSL that compute on floats and vectors of floats.

sign_of on vec4f   ->   fn sign_of_f32x4(x: vec4f) -> vec4f { ... }
"""

from __future__ import annotations

from webmlc.target.webgpu.spelling import helpers_of

HELPERS = helpers_of("""
// Compilers may assume that floats are finite, so only the bits show a NaN.
fn is_nan_{suffix}(x: {T}) -> {B} {
    return (bitcast<{U}>(x) & {U}(0x7fffffffu)) > {U}(0x7f800000u);
}

// WGSL's min and max may return either operand where one is a NaN.
fn minimum_{suffix}(a: {T}, b: {T}) -> {T} {
    return select(select(min(a, b), b, is_nan_{suffix}(b)), a, is_nan_{suffix}(a));
}

fn maximum_{suffix}(a: {T}, b: {T}) -> {T} {
    return select(select(max(a, b), b, is_nan_{suffix}(b)), a, is_nan_{suffix}(a));
}

// Minimum and maximum over a subgroup: if an operand is NaN, the sum is NaN, and so the result.
fn subgroup_minimum_{suffix}(x: {T}) -> {T} {
    let sum = subgroupAdd(x);
    return select(subgroupMin(x), sum, subgroupAny(is_nan_{suffix}(x)));
}

fn subgroup_maximum_{suffix}(x: {T}) -> {T} {
    let sum = subgroupAdd(x);
    return select(subgroupMax(x), sum, subgroupAny(is_nan_{suffix}(x)));
}

// The values of a quad's threads, in the order of the threads.
fn quad_vector_{suffix}(x: {T}) -> vec4<{T}> {
    let low = vec2(quadBroadcast(x, 0u), quadBroadcast(x, 1u));
    return vec4(low, quadBroadcast(x, 2u), quadBroadcast(x, 3u));
}

// The values of a quad's threads, where each thread's own value comes first. In the first
// function, all threads need the same vector. In the second, threads whose numbers differ in
// bit 1 need the same vector, and in the third, threads whose numbers differ in bit 0.
fn quad_swaps_0_{suffix}(x: {T}) -> vec4<{T}> {
    return vec4(x, quadSwapX(x), quadSwapY(x), quadSwapDiagonal(x));
}

fn quad_swaps_1_{suffix}(x: {T}, y: {T}) -> vec4<{T}> {
    return vec4(x, y, quadSwapY(x), quadSwapY(y));
}

fn quad_swaps_2_{suffix}(x: {T}, z: {T}) -> vec4<{T}> {
    return vec4(x, quadSwapX(x), z, quadSwapX(z));
}

// Minimum and maximum where `b` is a literal, and so not a NaN.
fn at_most_{suffix}(a: {T}, b: {T}) -> {T} {
    return select(min(a, b), a, is_nan_{suffix}(a));
}

fn at_least_{suffix}(a: {T}, b: {T}) -> {T} {
    return select(max(a, b), a, is_nan_{suffix}(a));
}

fn sign_of_{suffix}(x: {T}) -> {T} {
    return select(sign(x), x, is_nan_{suffix}(x));
}

// x·P(x²)/Q(x²) on [-4, 4], as in Eigen and XLA: at 4, erf in float32 is 1.
fn error_function_{suffix}(v: {T}) -> {T} {
    let x = clamp(v, {T}(-4.0), {T}(4.0));
    let s = x * x;
    var p = s * -2.72614225801306e-10 + 2.77068142495902e-08;
    p = p * s - 2.10102402082508e-06;
    p = p * s - 5.69250639462346e-05;
    p = p * s - 7.34990630326855e-04;
    p = p * s - 2.95459980854025e-03;
    p = p * s - 1.60960333262415e-02;
    var q = s * -1.45660718464996e-05 - 2.13374055278905e-04;
    q = q * s - 1.68282697438203e-03;
    q = q * s - 7.37332916720468e-03;
    q = q * s - 1.42647390514189e-02;
    return select(x * p / q, v, is_nan_{suffix}(v));
}

// WGSL leaves pow of a negative base undefined, and does not define 0 to the power 0, powers of
// zeros and infinities, and -1 to the power infinity. pow(x, 1) rounds.
fn power_{suffix}(x: {T}, y: {T}) -> {T} {
    let infinity = bitcast<{T}>({U}(infinity_bits));
    let undefined = bitcast<{T}>({U}(infinity_bits | 0x400000u));
    let whole = floor(y) == y;
    let odd = whole & (floor(y * 0.5) * 2.0 != y);
    let size = abs(x);
    let zero = size == {T}(0.0);
    let endless = bitcast<{U}>(size) == {U}(infinity_bits);
    let extreme = select({T}(0.0), infinity, (y < {T}(0.0)) == zero);
    let magnitude = select(pow(size, y), extreme, zero | endless);
    let negative = bitcast<{U}>(x) >= {U}(0x80000000u);
    let signed = select(magnitude, -magnitude, negative & odd);
    var result = select(signed, undefined, negative & !(whole | endless | zero));
    result = select(select(result, y, is_nan_{suffix}(y)), x, is_nan_{suffix}(x));
    result = select(result, x, y == {T}(1.0));
    let unit = (x == {T}(-1.0)) & (bitcast<{U}>(abs(y)) == {U}(infinity_bits));
    return select(result, {T}(1.0), unit | (y == {T}(0.0)) | (x == {T}(1.0)));
}

// Exact, by long division of the mantissas, with 8 bits of the quotient at a time: WGSL's % has
// no correct digit where the quotient has more digits than a float. Scalars only, as
// `expand_vectors` prints it. A finite number is its own remainder by infinity.
fn remainder_{suffix}(a: {T}, b: {T}) -> {T} {
    let sign = bitcast<{U}>(a) & 0x80000000u;
    let x = bitcast<{U}>(a) & 0x7fffffffu;
    let y = bitcast<{U}>(b) & 0x7fffffffu;
    if (x >= 0x7f800000u || y > 0x7f800000u || y == 0u) {
        return bitcast<{T}>(infinity_bits | 0x400000u);
    }
    if (x < y) {
        return a;
    }
    let hidden = 0x800000u;
    let divisor = select(y, (y & 0x7fffffu) | hidden, y >= hidden);
    let exponent = max(y >> 23u, 1u);
    var shift = max(x >> 23u, 1u) - exponent;
    var remainder = select(x, (x & 0x7fffffu) | hidden, x >= hidden) % divisor;
    while (shift > 0u && remainder > 0u) {
        let digits = min(shift, 8u);
        remainder = (remainder << digits) % divisor;
        shift -= digits;
    }
    if (remainder == 0u) {
        return bitcast<{T}>(sign);
    }
    let normal = min(23u - firstLeadingBit(remainder), exponent - 1u);
    let bits = ((exponent - 1u - normal) << 23u) + (remainder << normal);
    return bitcast<{T}>(sign | bits);
}

fn floored_remainder_{suffix}(a: {T}, b: {T}) -> {T} {
    let result = remainder_{suffix}(a, b);
    return select(result, result + b, result * sign(b) < {T}(0.0));
}

// Repeated squaring over the bits of the exponent. The reciprocal of an integer is 0 unless it
// is 1 or -1.
fn whole_power_{suffix}(x: {T}, y: {T}) -> {T} {
    var result = {T}(1);
    var square = x;
    for (var bit = 0u; bit < 31u; bit++) {
        let odd = ((y >> {U}(bit)) & {T}(1)) == {T}(1);
        result = select(result, result * square, odd);
        square = square * square;
    }
    return select(result, {T}(0), (y < {T}(0)) & (abs(x) != {T}(1)));
}

// Near 1, WGSL bounds only the absolute error: use the series of atanh((x - 1) / (x + 1)).
fn natural_log_{suffix}(x: {T}) -> {T} {
    let s = (x - 1.0) / (x + 1.0);
    let q = s * s;
    let series = s * (q * (q * (q * 0.28571430 + 0.4) + 0.66666669) + 2.0);
    return select(log(x), series, abs(x - 1.0) < {T}(0.25));
}

// Near zero, 1 + x loses the bits of x: use the series of atanh(x / (x + 2)).
fn log_one_plus_{suffix}(x: {T}) -> {T} {
    let s = x / (x + 2.0);
    let q = s * s;
    let series = s * (q * (q * (q * 0.28571430 + 0.4) + 0.66666669) + 2.0);
    return select(log(1.0 + x), series, abs(x) < {T}(0.25));
}

// WGSL requires 11 bits of atan, asin and acos, and some drivers give few more. These are the
// octants of atan, as in `wasm/approximations.py`.
fn arc_tangent_{suffix}(x: {T}) -> {T} {
    let a = abs(x);
    let far = a > {T}(2.4142135);
    let middle = a > {T}(0.41421357);
    let r = select(select(a, (a - 1.0) / (a + 1.0), middle), -1.0 / a, far);
    let q = r * r;
    var p = q * -0.060811557748392364 + 0.10595139674993058;
    p = p * q - 0.14243738766516356;
    p = p * q + 0.19998484000375935;
    p = p * q - 0.3333331542360185;
    let octant = select(select({T}(0.0), {T}(0.78539816), middle), {T}(1.5707964), far);
    let angle = octant + (r + r * q * p);
    return bitcast<{T}>(bitcast<{U}>(angle) | (bitcast<{U}>(x) & {U}(0x80000000u)));
}

fn arc_sine_{suffix}(x: {T}) -> {T} {
    let undefined = bitcast<{T}>({U}(infinity_bits | 0x400000u));
    let angle = arc_tangent_{suffix}(x / max(sqrt((1.0 - x) * (1.0 + x)), {T}(1e-30)));
    return select(angle, undefined, !(abs(x) <= {T}(1.0)));
}

fn arc_cosine_{suffix}(x: {T}) -> {T} {
    return 1.5707964 - arc_sine_{suffix}(x);
}

// Near zero, log(x + sqrt(x² + 1)) cancels. The square of the operand may overflow: above 2^30,
// x ± 1/x equals x.
fn area_sine_{suffix}(x: {T}) -> {T} {
    let a = abs(x);
    let square = a * a;
    let near = log_one_plus_{suffix}(a + square / (1.0 + sqrt(1.0 + square)));
    let size = select(near, log(a) + 0.6931472, a > {T}(1073741824.0));
    return bitcast<{T}>(bitcast<{U}>(size) | (bitcast<{U}>(x) & {U}(0x80000000u)));
}

// Near zero, log((1 + x) / (1 - x)) cancels.
fn area_tangent_{suffix}(x: {T}) -> {T} {
    let a = abs(x);
    let undefined = bitcast<{T}>({U}(infinity_bits | 0x400000u));
    let endless = select(undefined, bitcast<{T}>({U}(infinity_bits)), a == {T}(1.0));
    let near = 0.5 * log_one_plus_{suffix}(2.0 * a / (1.0 - a));
    let size = select(endless, near, a < {T}(1.0));
    return bitcast<{T}>(bitcast<{U}>(size) | (bitcast<{U}>(x) & {U}(0x80000000u)));
}

fn area_cosine_{suffix}(x: {T}) -> {T} {
    let undefined = bitcast<{T}>({U}(infinity_bits | 0x400000u));
    let near = select(acosh(x), undefined, !(x >= {T}(1.0)));
    return select(near, log(x) + 0.6931472, x > {T}(1073741824.0));
}

// Drivers compute tanh from exp(2x), which overflows to NaN and cancels near zero.
fn hyperbolic_tangent_{suffix}(x: {T}) -> {T} {
    let q = x * x;
    let tail = q * (q * (q * 0.021869488 - 0.053968254) + 0.13333334) - 0.33333334;
    let series = x * (q * tail + 1.0);
    let far = select(tanh(clamp(x, {T}(-10.0), {T}(10.0))), x, is_nan_{suffix}(x));
    return select(far, series, abs(x) < {T}(0.25));
}

// The angle less a multiple of π/2, and that multiple, for |x| >= 2^15. Of the product of the
// mantissa and 2/π, only the bits below 4 matter (Payne and Hanek, as in
// `wasm/functions.py`). The words are 32 zeros and the bits of 2/π.
fn word_of_two_over_pi_{suffix}(i: {U}) -> {U} {
    var word = select({U}(), {U}(0xa2f9836eu), i == {U}(1u));
    word = select(word, {U}(0x4e441529u), i == {U}(2u));
    word = select(word, {U}(0xfc2757d1u), i == {U}(3u));
    word = select(word, {U}(0xf534ddc0u), i == {U}(4u));
    word = select(word, {U}(0xdb629599u), i == {U}(5u));
    word = select(word, {U}(0x3c439041u), i == {U}(6u));
    return select(word, {U}(0xfe5163abu), i == {U}(7u));
}
fn high_word_{suffix}(a: {U}, b: {U}) -> {U} {
    let low = {U}(65535u);
    let half = {U}(16u);
    let inner = (a & low) * (b >> half) + (((a & low) * (b & low)) >> half);
    return (a >> half) * (b >> half) + (inner >> half)
        + (((a >> half) * (b & low) + (inner & low)) >> half);
}
fn large_angle_{suffix}(x: {T}, multiple: ptr<function, {U}>) -> {T} {
    let bits = bitcast<{U}>(x);
    let exponent = (bits >> {U}(23u)) & {U}(255u);
    let mantissa = (bits & {U}(0x7fffffu)) | {U}(0x800000u);
    let first = exponent - {U}(120u);
    let shift = first & {U}(31u);
    let back = {U}(31u) - shift;
    let i = first >> {U}(5u);
    let word1 = word_of_two_over_pi_{suffix}(i + {U}(1u));
    let word2 = word_of_two_over_pi_{suffix}(i + {U}(2u));
    let word3 = word_of_two_over_pi_{suffix}(i + {U}(3u));
    let a = (word_of_two_over_pi_{suffix}(i) << shift) | ((word1 >> {U}(1u)) >> back);
    let b = (word1 << shift) | ((word2 >> {U}(1u)) >> back);
    let c = (word2 << shift) | ((word3 >> {U}(1u)) >> back);
    let low = mantissa * b + high_word_{suffix}(mantissa, c);
    let carry = select({U}(), {U}(1u), low < mantissa * b);
    let high = mantissa * a + high_word_{suffix}(mantissa, b) + carry;
    let nearest = (high + {U}(0x20000000u)) >> {U}(30u);
    let fraction = high - (nearest << {U}(30u));
    let below = fraction >= {U}(0x80000000u);
    let borrow = select({U}(), {U}(1u), low == {U}());
    let upper = {T}(select(fraction, ~fraction + borrow, below));
    let lower = {T}(select(low, ~low + {U}(1u), below));
    let size = (upper * 4294967296.0 + lower) * 3.4061215800e-19;
    let negative = bits >= {U}(0x80000000u);
    *multiple = select(nearest, ~nearest + {U}(1u), negative);
    let undefined = bitcast<{T}>({U}(infinity_bits | 0x400000u));
    return select(select(size, -size, below != negative), undefined, exponent == {U}(255u));
}

// The sine, `turns` quarters of a turn later. WGSL bounds the errors of sin and cos only from -π
// to π. The parts of π/2 have few bits, so that their products with n are exact. The polynomials
// are from `wasm/approximations.py`.
fn turned_sine_{suffix}(x: {T}, turns: u32) -> {T} {
    let n = round(x * 0.63661977);
    var r = ((x - n * 1.5703125) - n * 0.00048351288) - n * 3.1385571e-7;
    r = select(r - n * 6.0771006e-11, x, n == {T}(0.0));
    var quadrant = {U}(n + 131072.0);
    let small = abs(x) < {T}(32768.0);
    if (!all(small)) {
        var multiple: {U};
        r = select(large_angle_{suffix}(x, &multiple), r, small);
        quadrant = select(multiple, quadrant, small);
    }
    quadrant += {U}(turns);
    let q = r * r;
    var sine = q * 2.7182372e-6 - 1.9839327e-4;
    sine = (sine * q + 8.3333294e-3) * q - 0.16666667;
    sine = select(r * q * sine + r, r, q == {T}(0.0));
    var cosine = q * -2.720955e-7 + 2.4799512e-5;
    cosine = (cosine * q - 1.3888884e-3) * q + 4.1666667e-2;
    cosine = (cosine * q - 0.5) * q + 1.0;
    let magnitude = select(sine, cosine, (quadrant & {U}(1u)) == {U}(1u));
    return bitcast<{T}>(bitcast<{U}>(magnitude) ^ ((quadrant & {U}(2u)) << {U}(30u)));
}

fn sine_{suffix}(x: {T}) -> {T} {
    return turned_sine_{suffix}(x, 0u);
}

fn cosine_{suffix}(x: {T}) -> {T} {
    return turned_sine_{suffix}(x, 1u);
}

fn tangent_{suffix}(x: {T}) -> {T} {
    return turned_sine_{suffix}(x, 0u) / turned_sine_{suffix}(x, 1u);
}

// exp(x) - exp(-x) cancels near zero: use a series there.
fn hyperbolic_sine_{suffix}(x: {T}) -> {T} {
    let s = x * x;
    let series = x * (s * (s * (s * 1.9841270e-4 + 8.3333333e-3) + 0.16666667) + 1.0);
    return select(sinh(x), series, abs(x) < {T}(0.5));
}
""")
"""The functions, by name."""
