// Reals that devices do not have: 16 bits (computed in 32), the x87's 80 bits (C's long double) and IEEE binary128, rounded to nearest,
// ties to even. A NaN is kept, or comes from an invalid operation; which NaN it is means nothing.

struct F16 { u16 bits; };
// 64 bits of significand, then sign and exponent; the last six bytes are filler, which results take from their second operand.
struct X87 { u64 significand, upper; };
struct Quad { u64 low, high; };

static __device__ float wide(F16 value) {
    u32 magnitude = value.bits & 0x7fffu;
    u32 bits = __float_as_uint(__fmul_rn(__uint_as_float(magnitude << 13), __uint_as_float(0x77800000u)));
    if (magnitude >= 0x7c00u) bits = magnitude << 13 | 0x7f800000u;
    return __uint_as_float(bits | (value.bits & 0x8000u) << 16);
}

static __device__ F16 narrow(float value) {
    u32 bits = __float_as_uint(value), sign = bits & 0x80000000u, result;
    bits ^= sign;
    if (bits >= 0x47800000u) {
        result = bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (bits < 0x38800000u) {
        // The sum has as its last bit the last one of a subnormal result.
        result = __float_as_uint(__fadd_rn(__uint_as_float(bits), 0.5f)) - 0x3f000000u;
    } else {
        result = (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1)) >> 13;
    }
    F16 made = {(u16)(result | sign >> 16)};
    return made;
}

// significand * 2^exponent, or something else.
enum Sort { NUMBER, INFINITE, NOT_A_NUMBER };
struct Soft {
    Sort sort;
    bool negative;
    i32 exponent;
    u128 significand;
};

// Both formats have 15 bits of exponent.
template <class T> struct Format {};
template <> struct Format<X87> { static const int PRECISION = 64; };
template <> struct Format<Quad> { static const int PRECISION = 113; };
// The exponent of the last bit of the smallest numbers.
template <class T> static __device__ i32 least_exponent() { return 2 - 16383 - Format<T>::PRECISION; }

static __device__ int bits_of(u128 value) {
    u64 high = (u64)(value >> 64), low = (u64)value;
    return high ? 128 - __clzll((i64)high) : low ? 64 - __clzll((i64)low) : 0;
}

static __device__ Soft open(X87 value) {
    i32 exponent = value.upper & 0x7fff;
    bool explicit_one = value.significand >> 63;
    Soft soft = {NUMBER, (value.upper >> 15 & 1) != 0, least_exponent<X87>() + (exponent ? exponent - 1 : 0), value.significand};
    if (exponent == 0x7fff) soft.sort = value.significand == 1ull << 63 ? INFINITE : NOT_A_NUMBER;
    // The x87 takes no significands that should begin with a one and do not.
    else if (exponent && !explicit_one) soft.sort = NOT_A_NUMBER;
    return soft;
}

static __device__ Soft open(Quad value) {
    i32 exponent = value.high >> 48 & 0x7fff;
    u128 fraction = (u128)(value.high << 16 >> 16) << 64 | value.low;
    Soft soft = {NUMBER, (value.high >> 63) != 0, least_exponent<Quad>() + (exponent ? exponent - 1 : 0), fraction};
    if (exponent == 0x7fff) soft.sort = fraction ? NOT_A_NUMBER : INFINITE;
    else if (exponent) soft.significand |= (u128)1 << 112;
    return soft;
}

static __device__ void pack(bool negative, i32 exponent, u128 significand, X87 *value) {
    value->significand = (u64)significand;
    value->upper = (u64)negative << 15 | (u64)exponent;
}

static __device__ void pack(bool negative, i32 exponent, u128 significand, Quad *value) {
    value->low = (u64)significand;
    value->high = (u64)negative << 63 | (u64)exponent << 48 | (u64)(significand >> 64) << 16 >> 16;
}

// The nearest value; `more` says that a little more than nothing was cut off, of numbers with at least two bits to spare.
template <class T> static __device__ __noinline__ T rounded(Soft soft, bool more) {
    const int precision = Format<T>::PRECISION;
    T value;
    u128 top = (u128)1 << (precision - 1), significand = soft.significand;
    if (soft.sort != NUMBER) {
        pack(soft.negative, 0x7fff, top | (soft.sort == NOT_A_NUMBER ? top >> 1 : (u128)0), &value);
        return value;
    }
    i32 exponent = soft.exponent, shift = bits_of(significand) - precision;
    if (exponent + shift < least_exponent<T>()) shift = least_exponent<T>() - exponent;
    if (shift > 128) {
        significand = 0;
    } else if (shift > 0) {
        u128 half = (u128)1 << (shift - 1), rest = significand & (half | (half - 1));
        significand = shift == 128 ? (u128)0 : significand >> shift;
        significand += rest > half || (rest == half && (more || (significand & 1)));
    } else {
        significand <<= -shift;
    }
    exponent += shift - least_exponent<T>();
    if (significand >> precision) significand >>= 1, exponent++;
    if (!(significand & top)) exponent = 0;
    else exponent++;
    if (exponent >= 0x7fff) exponent = 0x7fff, significand = top;
    pack(soft.negative, exponent, significand, &value);
    return value;
}

template <class T> static __device__ T not_a_number() {
    Soft soft = {NOT_A_NUMBER, false, 0, 0};
    return rounded<T>(soft, false);
}

template <class T> static __device__ __noinline__ T sum(T x, T y) {
    Soft a = open(x), b = open(y);
    if (a.sort == NOT_A_NUMBER || b.sort == NOT_A_NUMBER) return not_a_number<T>();
    if (a.sort == INFINITE || b.sort == INFINITE) {
        if (a.sort == b.sort && a.negative != b.negative) return not_a_number<T>();
        return rounded<T>(a.sort == INFINITE ? a : b, false);
    }
    if (a.exponent < b.exponent) {
        Soft other = a;
        a = b, b = other;
    }
    // 128 bits have room for 14 more than the significand and a carry.
    i32 apart = a.exponent - b.exponent, up = apart < 14 ? apart : 14, down = apart - up;
    u128 greater = a.significand << up, less = down < 128 ? b.significand >> down : (u128)0;
    bool more = down > 0 && (down < 128 ? (less << down) != b.significand : b.significand != 0);
    Soft result = {NUMBER, a.negative, a.exponent - up, greater + less};
    if (a.negative != b.negative) {
        if (greater >= less + more) {
            // What is cut off of the smaller one counts against the last bit.
            result.significand = greater - less - more;
        } else {
            result.significand = less - greater;
            result.negative = b.negative;
        }
        if (!result.significand && !more) result.negative = false;
    } else if (!a.significand) {
        result.negative = b.significand ? b.negative : a.negative && b.negative;
    }
    return rounded<T>(result, more);
}

template <class T> static __device__ __noinline__ T product(T x, T y) {
    Soft a = open(x), b = open(y);
    bool negative = a.negative != b.negative;
    if (a.sort == NOT_A_NUMBER || b.sort == NOT_A_NUMBER) return not_a_number<T>();
    if (a.sort == INFINITE || b.sort == INFINITE) {
        bool zero = (a.sort == NUMBER && !a.significand) || (b.sort == NUMBER && !b.significand);
        Soft infinite = {zero ? NOT_A_NUMBER : INFINITE, negative, 0, 0};
        return rounded<T>(infinite, false);
    }
    u64 a0 = (u64)a.significand, a1 = (u64)(a.significand >> 64), b0 = (u64)b.significand, b1 = (u64)(b.significand >> 64);
    u128 low = (u128)a0 * b0, one = (u128)a0 * b1, other = (u128)a1 * b0, high = (u128)a1 * b1;
    u128 middle = (low >> 64) + (u64)one + (u64)other;
    high += (one >> 64) + (other >> 64) + (middle >> 64);
    low = (u128)(u64)low | middle << 64;
    int shift = bits_of(high);
    bool more = false;
    if (shift) {
        more = low << (128 - shift) != 0;
        low = high << (128 - shift) | low >> shift;
    }
    Soft result = {NUMBER, negative, a.exponent + b.exponent + shift, low};
    return rounded<T>(result, more);
}

static __device__ X87 minus(X87 value) {
    value.upper ^= 0x8000;
    return value;
}
static __device__ Quad minus(Quad value) {
    value.high ^= 1ull << 63;
    return value;
}

// What orders as values do; no value has it that is no number.
static const int HIGHEST = 0x7fff;
static __device__ bool is_nan(X87 value) {
    return (value.upper & HIGHEST) == HIGHEST && value.significand << 1;
}
static __device__ bool is_nan(Quad value) {
    return (value.high >> 48 & HIGHEST) == HIGHEST && (value.high << 16 || value.low);
}
static __device__ i128 key(X87 value) {
    i128 magnitude = (i128)(value.upper & HIGHEST) << 64 | value.significand;
    return value.upper >> 15 & 1 ? -magnitude : magnitude;
}
static __device__ i128 key(Quad value) {
    i128 magnitude = (i128)(value.high << 1 >> 1) << 64 | value.low;
    return value.high >> 63 ? -magnitude : magnitude;
}
static __device__ bool is_less(X87 a, X87 b) { return !is_nan(a) && !is_nan(b) && key(a) < key(b); }
static __device__ bool is_less(Quad a, Quad b) { return !is_nan(a) && !is_nan(b) && key(a) < key(b); }
static __device__ bool is_nan(F16 value) { return (value.bits & 0x7fff) > 0x7c00; }
static __device__ bool is_less(F16 a, F16 b) { return wide(a) < wide(b); }
template <class T> static __device__ bool is_nan(T value) { return value != value; }
template <class T> static __device__ bool is_less(T a, T b) { return a < b; }
