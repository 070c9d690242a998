#include "runtime/base/dtype.h"

#include <array>
#include <cstddef>

namespace sluice {
namespace {

struct DTypeRow {
    std::int64_t size;
    bool floating;
    std::string_view name;
    std::string_view catalogue;
    std::string_view safetensors;
    std::string_view torch;
};

// In the order of the enumerators.
constexpr std::array<DTypeRow, kDTypeCount> kRows = {{
    {8, true, "f64", "fp64", "F64", "float64"},
    {4, true, "f32", "fp32", "F32", "float32"},
    {2, true, "f16", "fp16", "F16", "float16"},
    {2, true, "bf16", "bf16", "BF16", "bfloat16"},
    {1, true, "f8e4m3", "fp8_e4m3", "F8_E4M3", "float8_e4m3fn"},
    {1, true, "f8e5m2", "fp8_e5m2", "F8_E5M2", "float8_e5m2"},
    {8, false, "i64", "int64", "I64", "int64"},
    {4, false, "i32", "int32", "I32", "int32"},
    {2, false, "i16", "int16", "I16", "int16"},
    {1, false, "i8", "int8", "I8", "int8"},
    {8, false, "u64", "uint64", "U64", "uint64"},
    {4, false, "u32", "uint32", "U32", "uint32"},
    {2, false, "u16", "uint16", "U16", "uint16"},
    {1, false, "u8", "uint8", "U8", "uint8"},
    {1, false, "bool", "bool", "BOOL", "bool"},
}};

const DTypeRow& row(DType dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

template <class Match>
std::optional<DType> find(Match match) {
    for (std::size_t i = 0; i < kRows.size(); ++i) {
        if (match(kRows[i])) {
            return static_cast<DType>(i);
        }
    }
    return std::nullopt;
}

}  // namespace

std::int64_t size_of(DType dtype) { return row(dtype).size; }
bool is_floating(DType dtype) { return row(dtype).floating; }
std::string_view to_string(DType dtype) { return row(dtype).name; }
std::string_view safetensors_name(DType dtype) { return row(dtype).safetensors; }
std::string_view torch_name(DType dtype) { return row(dtype).torch; }

std::optional<DType> parse_dtype(std::string_view name) {
    return find([name](const DTypeRow& r) { return r.name == name || r.catalogue == name; });
}
std::optional<DType> parse_safetensors_dtype(std::string_view name) {
    return find([name](const DTypeRow& r) { return r.safetensors == name; });
}
std::optional<DType> parse_torch_dtype(std::string_view name) {
    return find([name](const DTypeRow& r) { return r.torch == name; });
}

}  // namespace sluice
