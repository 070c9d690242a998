#pragma once

/// For loops that are worth compiling a second time with AVX2, while the build as a whole runs on any x86-64 (or on
/// another processor). Internal to runtime/services.
///   SLUICE_TARGET_AVX2 void loop_avx2(...)  { loop(...); }   // with an always_inline loop()
///   has_avx2() ? loop_avx2(...) : loop(...);
#if defined(__x86_64__)
#define SLUICE_TARGET_AVX2 [[gnu::target("avx2")]]
#else
#define SLUICE_TARGET_AVX2
#endif

namespace sluice {

inline bool has_avx2() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") != 0;
#else
    return false;
#endif
}

}  // namespace sluice
