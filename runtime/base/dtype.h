#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice {

/// Element types, as in PyTorch and safetensors.
enum class DType : std::uint8_t {
    kF64,
    kF32,
    kF16,
    kBF16,
    kF8E4M3,
    kF8E5M2,
    kI64,
    kI32,
    kI16,
    kI8,
    kU64,
    kU32,
    kU16,
    kU8,
    kBool,
};
inline constexpr int kDTypeCount = 15;

/// Bytes of one element: 1, 2, 4 or 8.
std::int64_t size_of(DType dtype);
bool is_floating(DType dtype);

/// Our own short name, also used by the catalogues and by messages: "bf16", "f32", "f8e4m3", "u8", "bool".
std::string_view to_string(DType dtype);
/// Name in a safetensors header: "BF16", "F8_E4M3", "BOOL".
std::string_view safetensors_name(DType dtype);

/// Accepts our short names and the spellings of the catalogues ("fp32", "fp16", "fp8_e4m3").
std::optional<DType> parse_dtype(std::string_view name);
std::optional<DType> parse_safetensors_dtype(std::string_view name);
/// Accepts the spellings of config.json's `torch_dtype`: "bfloat16", "float32", ...
std::optional<DType> parse_torch_dtype(std::string_view name);
std::string_view torch_name(DType dtype);

}  // namespace sluice
