#include "runtime/cuda/cuda_device.h"

#include "runtime/cuda/cuda_device_stream.h"
#include "runtime/cuda/cuda_probe.h"
#include "runtime/cuda/cuda_program.h"
#include "runtime/cuda/cuda_status.h"
#include "runtime/cuda/device_memory.h"
#include "runtime/cuda/device_program.h"
#include "runtime/cuda/shared_device_memory.h"
#include "runtime/cuda/stream.h"
#include "runtime/cuda/value_kernels.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

CopyBase to_copy_base(DeviceBase base) {
    switch (base) {
        case DeviceBase::kWire:
            return CopyBase::kWire;
        case DeviceBase::kGathered:
            return CopyBase::kGathered;
        case DeviceBase::kAddress:
            break;
    }
    return CopyBase::kAddress;
}

class ValuesProgram final : public DeviceProgram {
public:
    ValuesProgram(const DeviceProgramView& program, const ValueTensor* table, std::uint64_t* different_count)
        : view(program), tensors(table), different(different_count) {}
    [[nodiscard]] std::int64_t wire_bytes() const override { return view.wire_bytes; }

    const DeviceProgramView view;
    const ValueTensor* tensors;
    std::uint64_t* different;
};

class OpenDevice final : public Device {
public:
    static Result<std::unique_ptr<Device>> open(int ordinal, int lanes) {
        std::unique_ptr<OpenDevice> device(new OpenDevice(ordinal));
        SLUICE_RETURN_IF_ERROR(device->use_on_this_thread());
        cudaDeviceProp properties{};
        SLUICE_RETURN_IF_ERROR(from_cuda(cudaGetDeviceProperties(&properties, ordinal), "asking for a CUDA device"));
        device->name_ = fmt::format("{}: {}", ordinal, properties.name);
        device->uuid_.assign(std::begin(properties.uuid.bytes), std::end(properties.uuid.bytes));
        SLUICE_RETURN_IF_ERROR(load_copy_kernels());
        SLUICE_ASSIGN_OR_RETURN(device->setup_, CudaStream::create());
        SLUICE_ASSIGN_OR_RETURN(const std::uint64_t* secrets, upload_secrets(device->arena_, *device->setup_));
        for (int i = 0; i < lanes; ++i) {
            SLUICE_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::create());
            SLUICE_ASSIGN_OR_RETURN(HashLane hash, HashLane::create(device->arena_, secrets, *device->setup_));
            device->lanes_.push_back({std::move(stream), std::move(hash)});
        }
        return std::unique_ptr<Device>(std::move(device));
    }

    [[nodiscard]] const std::string& name() const override { return name_; }
    [[nodiscard]] const std::string& uuid() const override { return uuid_; }
    [[nodiscard]] int lanes() const override { return static_cast<int>(lanes_.size()); }

    Status use_on_this_thread() override {
        return from_cuda(cudaSetDevice(ordinal_), fmt::format("selecting CUDA device {}", ordinal_));
    }

    Result<Buffer> allocate(std::int64_t size) override {
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        return allocate_device_memory(size);
    }
    Result<Buffer> allocate_pinned(std::int64_t size) override {
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        return allocate_pinned_memory(size);
    }

    Status check_address(const std::byte* data) override {
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        cudaPointerAttributes attributes{};
        SLUICE_RETURN_IF_ERROR(from_cuda(cudaPointerGetAttributes(&attributes, data), "asking what an address is"));
        if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) {
            return invalid_argument(fmt::format("{} is said to be GPU memory and is host memory; give its kind as host",
                                                static_cast<const void*>(data)));
        }
        if (attributes.device != ordinal_) {
            return invalid_argument(
                fmt::format("{} is memory of CUDA device {}, the session uses {}; open it with that one",
                            static_cast<const void*>(data), attributes.device, ordinal_));
        }
        return ok_status();
    }

    Result<std::unique_ptr<DeviceProgram>> compile(std::span<const DeviceCopy> copies) override {
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        std::vector<ProgramCopy> parts;
        parts.reserve(copies.size());
        for (const DeviceCopy& copy : copies) {
            parts.push_back({copy.copy, to_copy_base(copy.source_base), to_copy_base(copy.target_base), copy.source,
                             copy.target, copy.from, copy.to});
        }
        SLUICE_ASSIGN_OR_RETURN(const CopyProgram program, compile_program(parts));
        SLUICE_ASSIGN_OR_RETURN(const DeviceProgramView view, upload_program(program, arena_, *setup_));
        DeviceProgramView wire_form;
        if (view.converts) {
            ProgramCopy whole;
            whole.copy.item = program.wire_bytes;
            whole.source_base = whole.target_base = CopyBase::kWire;
            SLUICE_ASSIGN_OR_RETURN(const CopyProgram bytes, compile_program({&whole, 1}));
            SLUICE_ASSIGN_OR_RETURN(wire_form, upload_program(bytes, arena_, *setup_));
        }
        return std::unique_ptr<DeviceProgram>(std::make_unique<CudaProgram>(view, wire_form));
    }

    Status run(const DeviceProgram& program, const Bases& bases, int lane, std::uint64_t* digest) override {
        const auto& cuda = static_cast<const CudaProgram&>(program);
        Lane& on = lanes_[static_cast<std::size_t>(lane)];
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        const RunBases at{bases.wire, bases.gathered};
        const HashSink sink = on.hash.sink();
        SLUICE_RETURN_IF_ERROR(
            launch_copy(cuda.view, at, digest != nullptr && !cuda.view.converts ? &sink : nullptr, on.stream.handle()));
        if (digest != nullptr && cuda.view.converts) {
            SLUICE_RETURN_IF_ERROR(
                launch_hash(cuda.wire_form, at, CopySide::kSource, on.hash.sink(), on.stream.handle()));
        }
        SLUICE_RETURN_IF_ERROR(on.stream.wait());
        if (digest != nullptr) {
            *digest = on.hash.digest();
        }
        return ok_status();
    }

    Result<std::uint64_t> hash(const DeviceProgram& program, const Bases& bases, Side side, int lane) override {
        Lane& on = lanes_[static_cast<std::size_t>(lane)];
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        SLUICE_RETURN_IF_ERROR(launch_hash(static_cast<const CudaProgram&>(program).view, {bases.wire, bases.gathered},
                                           side == Side::kSource ? CopySide::kSource : CopySide::kTarget,
                                           on.hash.sink(), on.stream.handle()));
        SLUICE_RETURN_IF_ERROR(on.stream.wait());
        return on.hash.digest();
    }

    Status hash_all(std::span<const DeviceProgram* const> programs, const Bases& bases, Side side, int lane,
                    std::span<std::uint64_t> digests) override {
        Lane& on = lanes_[static_cast<std::size_t>(lane)];
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        for (std::size_t begin = 0; begin < programs.size(); begin += HashLane::kDigests) {
            const std::size_t count = std::min(HashLane::kDigests, programs.size() - begin);
            for (std::size_t i = 0; i < count; ++i) {
                SLUICE_RETURN_IF_ERROR(launch_hash(static_cast<const CudaProgram&>(*programs[begin + i]).view,
                                                   {bases.wire, bases.gathered},
                                                   side == Side::kSource ? CopySide::kSource : CopySide::kTarget,
                                                   on.hash.sink(i), on.stream.handle()));
            }
            SLUICE_RETURN_IF_ERROR(on.stream.wait());
            for (std::size_t i = 0; i < count; ++i) {
                digests[begin + i] = on.hash.digest(i);
            }
        }
        return ok_status();
    }

    Status copy(std::byte* to, const std::byte* from, std::size_t size, int lane) override {
        const CudaStream& stream = lanes_[static_cast<std::size_t>(lane)].stream;
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        SLUICE_RETURN_IF_ERROR(copy_async(to, from, size, stream));
        return stream.wait();
    }
    Status fill(std::byte* to, std::byte value, std::size_t size, int lane) override {
        const CudaStream& stream = lanes_[static_cast<std::size_t>(lane)].stream;
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        SLUICE_RETURN_IF_ERROR(fill_async(to, value, size, stream));
        return stream.wait();
    }

    Result<std::unique_ptr<DeviceProgram>> compile_values(std::span<const DeviceValues> values) override {
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        std::vector<ProgramCopy> copies;
        std::vector<ValueTensor> tensors;
        for (const DeviceValues& one : values) {
            ProgramCopy& copy = copies.emplace_back();
            copy.copy = one.copy;
            copy.target = one.target;
            copy.tag = static_cast<std::uint32_t>(tensors.size());
            tensors.push_back({one.name_hash, one.dtype});
        }
        SLUICE_ASSIGN_OR_RETURN(const CopyProgram program, compile_program(copies));
        SLUICE_ASSIGN_OR_RETURN(const DeviceProgramView view, upload_program(program, arena_, *setup_));
        tensors.emplace_back();  // never empty
        SLUICE_ASSIGN_OR_RETURN(const std::byte* table,
                                arena_.upload(tensors.data(), tensors.size() * sizeof(ValueTensor), *setup_));
        const std::uint64_t zero = 0;
        SLUICE_ASSIGN_OR_RETURN(const std::byte* counter, arena_.upload(&zero, sizeof zero, *setup_));
        return std::unique_ptr<DeviceProgram>(
            std::make_unique<ValuesProgram>(view, reinterpret_cast<const ValueTensor*>(table),
                                            reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(counter))));
    }

    Status fill_values(const DeviceProgram& program, std::int64_t version, int lane) override {
        const auto& values = static_cast<const ValuesProgram&>(program);
        const CudaStream& stream = lanes_[static_cast<std::size_t>(lane)].stream;
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        SLUICE_RETURN_IF_ERROR(launch_fill_values(values.view, values.tensors, version, stream.handle()));
        return stream.wait();
    }

    Result<std::uint64_t> count_other_values(const DeviceProgram& program, std::int64_t version, int lane) override {
        const auto& values = static_cast<const ValuesProgram&>(program);
        const CudaStream& stream = lanes_[static_cast<std::size_t>(lane)].stream;
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        auto* counter = reinterpret_cast<std::byte*>(values.different);
        SLUICE_RETURN_IF_ERROR(fill_async(counter, std::byte{0}, sizeof(std::uint64_t), stream));
        SLUICE_RETURN_IF_ERROR(
            launch_check_values(values.view, values.tensors, version, values.different, stream.handle()));
        std::uint64_t count = 0;
        SLUICE_RETURN_IF_ERROR(copy_async(reinterpret_cast<std::byte*>(&count), counter, sizeof count, stream));
        SLUICE_RETURN_IF_ERROR(stream.wait());
        return count;
    }

    Result<bool> event_reached(void* event) override {
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(event));
        if (not_ready(state)) {
            return false;
        }
        SLUICE_RETURN_IF_ERROR(from_cuda(state, "asking for the caller's event"));
        return true;
    }

    Result<std::unique_ptr<DeviceStream>> make_stream() override {
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        return make_cuda_device_stream(ordinal_);
    }

    Result<std::vector<std::byte>> share(const std::byte* data) override {
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        return share_device_memory(data);
    }
    Result<Buffer> map(std::span<const std::byte> handle, std::int64_t size) override {
        SLUICE_RETURN_IF_ERROR(use_on_this_thread());
        return map_device_memory(handle, size);
    }

private:
    struct Lane {
        CudaStream stream;
        HashLane hash;
    };

    explicit OpenDevice(int ordinal) : ordinal_(ordinal) {}

    int ordinal_;
    std::string name_;
    std::string uuid_;
    UploadArena arena_;
    std::optional<CudaStream> setup_;
    std::vector<Lane> lanes_;
};

}  // namespace

Result<std::unique_ptr<Device>> open_cuda_device(int ordinal, int lanes) {
    const CudaState state = probe_cuda();
    if (!state.problem.empty()) {
        return Status(StatusCode::kUnsupported, "no GPU memory: " + state.problem);
    }
    const auto count = static_cast<int>(state.devices.size());
    if (ordinal < 0 || ordinal >= count) {
        return invalid_argument(fmt::format(
            "there is no CUDA device {}: this machine shows {}, from 0; look at CUDA_VISIBLE_DEVICES", ordinal, count));
    }
    return OpenDevice::open(ordinal, lanes);
}

}  // namespace sluice
