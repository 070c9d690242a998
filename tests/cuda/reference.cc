// For pytorch_test.py: does one operation on a raw file of elements, on the GPU, and writes the raw results.
//   cuda_reference cast FROM TO IN OUT
//   cuda_reference quantise FROM MATRICES ROWS COLUMNS IN VALUES SCALES
// Exits with 77 and says why where there is no GPU.
#include "runtime/cuda/block_quantise.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/device_memory.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace sluice {
namespace {

constexpr int kSkipped = 77;

using Bytes = std::vector<std::byte>;

Bytes read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    return {begin, begin + text.size()};
}

void write(const std::string& path, const Bytes& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

Status download(Device& device, const Buffer& from, Bytes& to) {
    return device.copy(to.data(), from.data(), to.size(), 0);
}

Status cast(Device& device, DType from, DType to, const std::string& in, const std::string& out) {
    const Bytes source = read(in);
    const auto count = static_cast<std::int64_t>(source.size()) / size_of(from);
    Bytes result(static_cast<std::size_t>(count * size_of(to)));
    SLUICE_ASSIGN_OR_RETURN(const Buffer here, device.allocate(static_cast<std::int64_t>(source.size())));
    SLUICE_ASSIGN_OR_RETURN(const Buffer there, device.allocate(static_cast<std::int64_t>(result.size())));
    SLUICE_RETURN_IF_ERROR(device.copy(here.data(), source.data(), source.size(), 0));
    DeviceCopy copy;
    copy.copy = {0, 0, size_of(from), Dims{count}, Dims{size_of(from)}, Dims{size_of(to)}};
    copy.source = here.data();
    copy.target = there.data();
    copy.from = from;
    copy.to = to;
    SLUICE_ASSIGN_OR_RETURN(const auto program, device.compile({&copy, 1}));
    SLUICE_RETURN_IF_ERROR(device.run(*program, {}, 0, nullptr));
    SLUICE_RETURN_IF_ERROR(download(device, there, result));
    write(out, result);
    return ok_status();
}

Status quantise(Device& device, BlockQuantisation job, const std::string& in, const std::string& values_out,
                const std::string& scales_out) {
    const Bytes source = read(in);
    Bytes values(static_cast<std::size_t>(job.matrices * job.rows * job.columns));
    Bytes scales(static_cast<std::size_t>(job.matrices * job.block_rows() * job.block_columns()) * sizeof(float));
    SLUICE_ASSIGN_OR_RETURN(const Buffer here, device.allocate(static_cast<std::int64_t>(source.size())));
    SLUICE_ASSIGN_OR_RETURN(const Buffer values_there, device.allocate(static_cast<std::int64_t>(values.size())));
    SLUICE_ASSIGN_OR_RETURN(const Buffer scales_there, device.allocate(static_cast<std::int64_t>(scales.size())));
    SLUICE_RETURN_IF_ERROR(device.copy(here.data(), source.data(), source.size(), 0));
    job.source = here.data();
    job.values = values_there.data();
    job.scales = reinterpret_cast<float*>(scales_there.data());
    SLUICE_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::create());
    SLUICE_RETURN_IF_ERROR(launch_quantise(job, stream.handle()));
    SLUICE_RETURN_IF_ERROR(stream.wait());
    SLUICE_RETURN_IF_ERROR(download(device, values_there, values));
    SLUICE_RETURN_IF_ERROR(download(device, scales_there, scales));
    write(values_out, values);
    write(scales_out, scales);
    return ok_status();
}

int run(const std::vector<std::string>& arguments) {
    const auto device = open_cuda_device(0, 1);
    if (!device.ok()) {
        std::fprintf(stderr, "%s\n", device.status().message().c_str());
        return device.status().code() == StatusCode::kUnsupported ? kSkipped : EXIT_FAILURE;
    }
    const auto dtype = [&](std::size_t i) { return parse_dtype(arguments[i]).value(); };
    Status status = invalid_argument("usage: cuda_reference cast|quantise ...");
    if (arguments.size() == 5 && arguments[0] == "cast") {
        status = cast(**device, dtype(1), dtype(2), arguments[3], arguments[4]);
    } else if (arguments.size() == 8 && arguments[0] == "quantise") {
        BlockQuantisation job;
        job.from = dtype(1);
        job.matrices = std::stoll(arguments[2]);
        job.rows = std::stoll(arguments[3]);
        job.columns = std::stoll(arguments[4]);
        status = quantise(**device, job, arguments[5], arguments[6], arguments[7]);
    }
    if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.message().c_str());
    }
    return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::run({argv + 1, argv + argc}); }
