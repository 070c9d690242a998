#pragma once

#include "runtime/base/status.h"
#include "runtime/services/buffer.h"
#include "runtime/services/device.h"

#include <cstdint>

namespace sluice {

/// Memory for slots and staging: host memory without a device, that of the device, or pinned memory (`staged`), which kernels and a transport without
/// CUDA reach both.
inline Result<Buffer> allocate_exchange_memory(std::int64_t size, Device* device, bool staged) {
    if (device == nullptr) {
        return Buffer::allocate(size, MemoryKind::kHost);
    }
    return staged ? device->allocate_pinned(size) : device->allocate(size);
}

}  // namespace sluice
