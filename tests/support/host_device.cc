#include "tests/support/host_device.h"

#include "runtime/services/copy_engine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace sluice::test {
namespace {

class Program final : public DeviceProgram {
public:
    explicit Program(std::vector<DeviceCopy> all) : copies(std::move(all)) {
        for (const DeviceCopy& one : copies) {
            bytes_ +=
                one.copy.items() * (one.from == one.to ? one.copy.item : std::min(size_of(one.from), size_of(one.to)));
        }
    }
    [[nodiscard]] std::int64_t wire_bytes() const override { return bytes_; }
    const std::vector<DeviceCopy> copies;

private:
    std::int64_t bytes_ = 0;
};

const std::byte* source_of(const DeviceCopy& copy, const Device::Bases& bases) {
    return copy.source_base == DeviceBase::kAddress ? copy.source
           : copy.source_base == DeviceBase::kWire  ? bases.wire
                                                    : bases.gathered;
}
std::byte* target_of(const DeviceCopy& copy, const Device::Bases& bases) {
    return copy.target_base == DeviceBase::kAddress ? copy.target
           : copy.target_base == DeviceBase::kWire  ? bases.wire
                                                    : const_cast<std::byte*>(bases.gathered);
}

void free_bytes(std::byte* data, std::size_t) { std::free(data); }
void keep_bytes(std::byte*, std::size_t) {}

Result<Buffer> imitation(std::int64_t size, MemoryKind kind) {
    // Aligned as device memory is, and not cleared: poison shows what was not written.
    const auto rounded = static_cast<std::size_t>(size + 255) / 256 * 256;
    auto* data = size == 0 ? nullptr : static_cast<std::byte*>(std::aligned_alloc(256, rounded));
    if (data != nullptr) {
        std::memset(data, 0xD5, rounded);
    }
    return Buffer::adopt(data, size, kind, free_bytes);
}

}  // namespace

Result<Buffer> HostDevice::allocate(std::int64_t size) {
    allocated_ += size;
    return imitation(size, MemoryKind::kCuda);
}
Result<Buffer> HostDevice::allocate_pinned(std::int64_t size) { return imitation(size, MemoryKind::kPinned); }

Status HostDevice::check_address(const std::byte* data) {
    return data == nullptr ? invalid_argument("no address") : ok_status();
}

Result<std::unique_ptr<DeviceProgram>> HostDevice::compile(std::span<const DeviceCopy> copies) {
    if (Status status = before_compile(); !status.ok()) {
        return status;
    }
    return std::unique_ptr<DeviceProgram>(
        std::make_unique<Program>(std::vector<DeviceCopy>(copies.begin(), copies.end())));
}

Status HostDevice::before_work(int lane) {
    ++waits_;
    if (lane < 0 || lane >= lanes_) {
        return internal_error("lane " + std::to_string(lane) + " of a device with " + std::to_string(lanes_));
    }
    return before_run();
}

Status HostDevice::run(const DeviceProgram& program, const Bases& bases, int lane, std::uint64_t* digest) {
    SLUICE_RETURN_IF_ERROR(before_work(lane));
    ChunkHash hash;
    bool converts = false;
    for (const DeviceCopy& one : static_cast<const Program&>(program).copies) {
        if (one.from != one.to) {
            converting_copy(one.copy, one.from, one.to, source_of(one, bases), target_of(one, bases));
            converts = true;
        } else {
            strided_copy(one.copy, source_of(one, bases), target_of(one, bases));
            hash.update_source(one.copy, source_of(one, bases));
        }
    }
    if (digest != nullptr) {
        if (converts) {
            hash.reset();
            hash.update(bases.wire, static_cast<std::size_t>(program.wire_bytes()));
        }
        *digest = hash.digest();
    }
    return ok_status();
}

Result<std::uint64_t> HostDevice::hash(const DeviceProgram& program, const Bases& bases, Side side, int lane) {
    SLUICE_RETURN_IF_ERROR(before_work(lane));
    ChunkHash hash;
    for (const DeviceCopy& one : static_cast<const Program&>(program).copies) {
        if (side == Side::kSource) {
            hash.update_source(one.copy, source_of(one, bases));
        } else {
            hash.update_destination(one.copy, target_of(one, bases));
        }
    }
    return hash.digest();
}

Status HostDevice::hash_all(std::span<const DeviceProgram* const> programs, const Bases& bases, Side side, int lane,
                            std::span<std::uint64_t> digests) {
    for (std::size_t i = 0; i < programs.size(); ++i) {
        SLUICE_ASSIGN_OR_RETURN(digests[i], hash(*programs[i], bases, side, lane));
    }
    return ok_status();
}

Status HostDevice::copy(std::byte* to, const std::byte* from, std::size_t size, int /*lane*/) {
    std::copy_n(from, size, to);  // of nothing, from nowhere, too
    return ok_status();
}

Status HostDevice::fill(std::byte* to, std::byte value, std::size_t size, int /*lane*/) {
    std::fill_n(to, size, value);
    return ok_status();
}

Result<std::unique_ptr<DeviceProgram>> HostDevice::compile_values(std::span<const DeviceValues> /*values*/) {
    return Status(StatusCode::kUnsupported, "the imitation makes no values");
}
Status HostDevice::fill_values(const DeviceProgram& /*program*/, std::int64_t /*version*/, int /*lane*/) {
    return {StatusCode::kUnsupported, "the imitation makes no values"};
}
Result<std::uint64_t> HostDevice::count_other_values(const DeviceProgram& /*program*/, std::int64_t /*version*/,
                                                     int /*lane*/) {
    return Status(StatusCode::kUnsupported, "the imitation makes no values");
}

Result<bool> HostDevice::event_reached(void* event) {
    if (events_.empty() || events_.back() != event) {
        events_.push_back(event);
    }
    return events_reached.load();
}

Result<std::unique_ptr<DeviceStream>> HostDevice::make_stream() {
    return std::unique_ptr<DeviceStream>(std::make_unique<HostStream>(
        [this](const DeviceProgram& program, const Bases& bases) { return run(program, bases, 0, nullptr); },
        [this] { return before_stream_work(); }, stream_log_));
}

Result<std::vector<std::byte>> HostDevice::share(const std::byte* data) {
    if (!shareable) {
        return Status(StatusCode::kUnsupported, "this memory cannot be exported");
    }
    std::vector<std::byte> handle(sizeof data);
    std::memcpy(handle.data(), &data, sizeof data);
    return handle;
}

Result<Buffer> HostDevice::map(std::span<const std::byte> handle, std::int64_t size) {
    std::byte* data = nullptr;
    if (handle.size() != sizeof data) {
        return invalid_argument("no handle");
    }
    if (Status status = before_map(); !status.ok()) {
        return status;
    }
    std::memcpy(&data, handle.data(), sizeof data);
    return Buffer::adopt(data, size, MemoryKind::kCuda, keep_bytes);
}

}  // namespace sluice::test
