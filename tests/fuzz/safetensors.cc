// The input is a safetensors file.
#include "runtime/services/safetensors.h"

#include "tests/fuzz/require.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>

namespace sluice::test {
namespace {

void check(std::span<const std::byte> file) {
    const Result<SafetensorsContents> contents = parse_safetensors(file, "input");
    if (!contents.ok()) {
        require(contents.status().message().find('\n') == std::string::npos, "an error is one line");
        return;
    }
    const std::vector<SafetensorsTensor>& tensors = contents->tensors;
    unsigned sum = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const SafetensorsTensor& tensor = tensors[i];
        require(i == 0 || tensors[i - 1].name < tensor.name, "tensors are ordered by name, each once");
        require(static_cast<std::int64_t>(tensor.bytes.size()) == num_elements(tensor.shape) * size_of(tensor.dtype),
                "a tensor has the bytes of its shape and dtype");
        require(tensor.bytes.empty() || (tensor.bytes.data() >= file.data() &&
                                         tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size()),
                "a tensor's bytes lie in the file");
        for (const std::byte b : tensor.bytes) {
            sum += static_cast<unsigned>(b);
        }
    }
    static volatile unsigned sink = 0;  // so that the bytes are read
    sink = sink + sum;
}

}  // namespace
}  // namespace sluice::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    sluice::test::check({reinterpret_cast<const std::byte*>(data), size});
    return 0;
}
