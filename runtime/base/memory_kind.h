#pragma once

#include <cstdint>

namespace sluice {

/// Where memory lies. Given explicitly with every buffer and registration; never guessed from a pointer.
enum class MemoryKind : std::uint8_t {
    kHost,    ///< Ordinary host memory.
    kPinned,  ///< Page-locked host memory that a GPU can copy from and to at full speed.
    kCuda,    ///< Memory of a CUDA device.
};

constexpr const char* to_string(MemoryKind kind) {
    switch (kind) {
        case MemoryKind::kHost:
            return "host";
        case MemoryKind::kPinned:
            return "pinned";
        case MemoryKind::kCuda:
            return "cuda";
    }
    return "unknown";
}

}  // namespace sluice
