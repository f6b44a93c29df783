// What operations do to two elements: `of(a, b)` is `a op b`, with the bits that the processor's kernels give (op/kernels.rs).

// Products of small integers are computed where they do not overflow as int.
template <class T> static __device__ T times(T a, T b) { return (T)(a * b); }
static __device__ u8 times(u8 a, u8 b) { return (u8)((u32)a * b); }
static __device__ u16 times(u16 a, u16 b) { return (u16)((u32)a * b); }
static __device__ float times(float a, float b) { return __fmul_rn(a, b); }
static __device__ double times(double a, double b) { return __dmul_rn(a, b); }
static __device__ F16 times(F16 a, F16 b) { return narrow(__fmul_rn(wide(a), wide(b))); }
static __device__ X87 times(X87 a, X87 b) { return product(a, b); }
static __device__ Quad times(Quad a, Quad b) { return product(a, b); }

template <class T> static __device__ T plus(T a, T b) { return (T)(a + b); }
static __device__ float plus(float a, float b) { return __fadd_rn(a, b); }
static __device__ double plus(double a, double b) { return __dadd_rn(a, b); }
static __device__ F16 plus(F16 a, F16 b) { return narrow(__fadd_rn(wide(a), wide(b))); }
static __device__ X87 plus(X87 a, X87 b) { return sum(a, b); }
static __device__ Quad plus(Quad a, Quad b) { return sum(a, b); }

static __device__ float minus(float value) { return -value; }
static __device__ double minus(double value) { return -value; }

// The filler of C's long double stays that of the second operand.
template <class T> static __device__ T filled(T value, T) { return value; }
static __device__ X87 filled(X87 value, X87 like) {
    value.upper = (value.upper & 0xffff) | (like.upper & ~0xffffull);
    return value;
}

template <class T> struct Complex { T re, im; };

template <class E> struct Element {
    typedef E T;
    __device__ void take(const u64 *) {}
};

template <class T> struct Sum : Element<T> {
    static __device__ T of(T a, T b) { return filled(plus(a, b), b); }
};
template <class T> struct Prod : Element<T> {
    static __device__ T of(T a, T b) { return filled(times(a, b), b); }
};
template <class T> struct Sum<Complex<T> > : Element<Complex<T> > {
    static __device__ Complex<T> of(Complex<T> a, Complex<T> b) {
        Complex<T> result = {filled(plus(a.re, b.re), b.re), filled(plus(a.im, b.im), b.im)};
        return result;
    }
};
// Each product and each sum is rounded: none are fused.
template <class T> struct Prod<Complex<T> > : Element<Complex<T> > {
    static __device__ Complex<T> of(Complex<T> a, Complex<T> b) {
        T re = plus(times(a.re, b.re), minus(times(a.im, b.im)));
        T im = plus(times(a.re, b.im), times(a.im, b.re));
        Complex<T> result = {filled(re, b.re), filled(im, b.im)};
        return result;
    }
};
// Those of 16-bit reals are rounded to 16 bits once, at the end.
template <> struct Prod<Complex<F16> > : Element<Complex<F16> > {
    static __device__ Complex<F16> of(Complex<F16> a, Complex<F16> b) {
        Complex<float> x = {wide(a.re), wide(a.im)}, y = {wide(b.re), wide(b.im)};
        Complex<float> z = Prod<Complex<float> >::of(x, y);
        Complex<F16> result = {narrow(z.re), narrow(z.im)};
        return result;
    }
};

// A NaN on either side is kept, and of equal values the second.
template <class T> struct Min : Element<T> {
    static __device__ T of(T a, T b) { return filled(is_less(a, b) || is_nan(a) ? a : b, b); }
};
template <class T> struct Max : Element<T> {
    static __device__ T of(T a, T b) { return filled(is_less(b, a) || is_nan(a) ? a : b, b); }
};

template <class T> struct Band : Element<T> {
    static __device__ T of(T a, T b) { return (T)(a & b); }
};
template <class T> struct Bor : Element<T> {
    static __device__ T of(T a, T b) { return (T)(a | b); }
};
template <class T> struct Bxor : Element<T> {
    static __device__ T of(T a, T b) { return (T)(a ^ b); }
};

template <class T> struct Land : Element<T> {
    static __device__ T of(T a, T b) { return (T)(a != 0 && b != 0); }
};
template <class T> struct Lor : Element<T> {
    static __device__ T of(T a, T b) { return (T)(a != 0 || b != 0); }
};
template <class T> struct Lxor : Element<T> {
    static __device__ T of(T a, T b) { return (T)((a != 0) != (b != 0)); }
};

// LOGICAL with the values that the program gave: what is not false is true.
template <class E> struct Truth {
    typedef E T;
    u128 yes, no;
    __device__ bool is_true(T value) const { return (u128)(i128)value != no; }
    __device__ T written(bool value) const { return (T)(value ? yes : no); }
    __device__ void take(const u64 *values) {
        yes = (u128)values[1] << 64 | values[0];
        no = (u128)values[3] << 64 | values[2];
    }
};
#define FORTRAN(name, test)                                                                                  \
    template <class T> struct name : Truth<T> {                                                              \
        __device__ T of(T a, T b) const { return this->written(this->is_true(a) test this->is_true(b)); }    \
    };
FORTRAN(FortranLand, &&)
FORTRAN(FortranLor, ||)
FORTRAN(FortranLxor, !=)

// True if the pair of the first value is to replace that of the second: the better one, NaN before all others, the lower index on a tie.
template <class V, class I, bool MAX> static __device__ bool wins(V a, I a_index, V b, I b_index) {
    bool a_nan = is_nan(a), b_nan = is_nan(b);
    if (a_nan != b_nan) return a_nan;
    if (is_less(a, b)) return !MAX;
    if (is_less(b, a)) return MAX;
    return is_less(a_index, b_index);
}
