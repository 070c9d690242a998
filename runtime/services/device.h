#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "runtime/base/strided_copy.h"
#include "runtime/services/block_quantise.h"
#include "runtime/services/buffer.h"
#include "runtime/services/deadline.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// What the exchange needs of a GPU. Implemented in runtime/cuda; everything above sees this interface alone, and is built without
/// CUDA as well.
namespace sluice {

/// What an address of a device copy counts from.
enum class DeviceBase : std::uint8_t {
    kAddress,   ///< The pointer given with the copy.
    kWire,      ///< The wire form of the chunk, a multiple of 16; given with each run.
    kGathered,  ///< The owner's gather buffer, a multiple of 16; given with each run.
};

/// One copy of a program. With `from` != `to` the elements are converted (can_convert), and copy.item is size_of(from).
struct DeviceCopy {
    StridedCopy copy;  ///< Its walking order is the order of the wire form.
    DeviceBase source_base = DeviceBase::kAddress;
    DeviceBase target_base = DeviceBase::kAddress;
    const std::byte* source = nullptr;  ///< With kAddress.
    std::byte* target = nullptr;
    DType from = DType::kU8;
    DType to = DType::kU8;
};

/// Elements of a generated tensor (tensor_values.h): the copy's source side counts bytes of the full tensor.
struct DeviceValues {
    StridedCopy copy;
    std::byte* target = nullptr;
    std::uint64_t name_hash = 0;
    DType dtype = DType::kU8;
};

/// Copies that one launch carries out, with their descriptors on the device. Belongs to its device and dies before it.
class DeviceProgram {
public:
    virtual ~DeviceProgram() = default;
    [[nodiscard]] virtual std::int64_t wire_bytes() const = 0;
};

class DeviceStream;

/// One GPU. Set-up calls come from one thread at a time; runs from several threads at once, each on a lane of its own.
class Device {
public:
    /// Where the bases of a program lie in one run.
    struct Bases {
        std::byte* wire = nullptr;
        const std::byte* gathered = nullptr;
    };
    enum class Side : std::uint8_t { kSource, kTarget };

    virtual ~Device() = default;

    /// "0: NVIDIA H200".
    [[nodiscard]] virtual const std::string& name() const = 0;
    /// Of the GPU itself: the same in every process that uses it.
    [[nodiscard]] virtual const std::string& uuid() const = 0;

    /// Makes the device the one that UCX and CUDA use on the calling thread. Each thread that touches device memory does so first.
    virtual Status use_on_this_thread() = 0;

    /// Device memory; not cleared. Set-up only: it may wait for the whole device, and so does giving it back.
    virtual Result<Buffer> allocate(std::int64_t size) = 0;
    /// Host memory that the device reads and writes too.
    virtual Result<Buffer> allocate_pinned(std::int64_t size) = 0;

    /// Refuses an address that is not in this device's memory.
    virtual Status check_address(const std::byte* data) = 0;

    virtual Result<std::unique_ptr<DeviceProgram>> compile(std::span<const DeviceCopy> copies) = 0;

    // Runs block the calling thread until the work is done, and no other thread; `lane` is below lanes().

    [[nodiscard]] virtual int lanes() const = 0;
    /// Carries out the copies; with `digest` also the ChunkHash of the wire form, of which converting programs need the base kWire.
    virtual Status run(const DeviceProgram& program, const Bases& bases, int lane, std::uint64_t* digest) = 0;
    /// The ChunkHash of what lies on one side, in wire order. Not of a converting program.
    virtual Result<std::uint64_t> hash(const DeviceProgram& program, const Bases& bases, Side side, int lane) = 0;
    /// The same of many programs, with few waits in all. `digests` has a place for each.
    virtual Status hash_all(std::span<const DeviceProgram* const> programs, const Bases& bases, Side side, int lane,
                            std::span<std::uint64_t> digests) = 0;
    /// Copies between any two kinds of memory, and fills.
    virtual Status copy(std::byte* to, const std::byte* from, std::size_t size, int lane) = 0;
    virtual Status fill(std::byte* to, std::byte value, std::size_t size, int lane) = 0;

    /// A program for the next two only. They make and check what fill_generated() makes.
    virtual Result<std::unique_ptr<DeviceProgram>> compile_values(std::span<const DeviceValues> values) = 0;
    virtual Status fill_values(const DeviceProgram& program, std::int64_t version, int lane) = 0;
    /// At how many places of up to 16 bytes the memory holds something else.
    virtual Result<std::uint64_t> count_other_values(const DeviceProgram& program, std::int64_t version, int lane) = 0;

    /// Whether all that an event of CUDA's (a cudaEvent_t) was recorded after has ended. Does not wait.
    virtual Result<bool> event_reached(void* event) = 0;
    /// A queue of work beside the lanes. Set-up only.
    virtual Result<std::unique_ptr<DeviceStream>> make_stream() = 0;

    /// How another process of this host finds memory that allocate() made, or other memory that can be exported. An error says
    /// why it cannot be.
    virtual Result<std::vector<std::byte>> share(const std::byte* data) = 0;
    /// Such memory in this process, which may be the one that shared it, readable; `size` bytes from the address that was shared.
    virtual Result<Buffer> map(std::span<const std::byte> handle, std::int64_t size) = 0;
};

/// Work on a device that runs in the order in which it was launched, beside all other work. Belongs to its device and dies before it. One thread
/// at a time. Launching blocks nobody.
class DeviceStream {
public:
    /// Waits for what was launched.
    virtual ~DeviceStream() = default;

    /// A cudaStream_t, for kernels of one's own. Null where there is no CUDA.
    [[nodiscard]] virtual void* handle() const = 0;

    virtual Status run(const DeviceProgram& program, const Device::Bases& bases) = 0;
    /// quantise_blocks() on memory of the device.
    virtual Status quantise(const BlockQuantisation& job) = 0;

    /// What is launched from now on starts after all that `other` (a cudaStream_t of this device) has been given so far.
    virtual Status follow(void* other) = 0;
    /// What `other` is given from now on starts after all that was launched here so far.
    virtual Status precede(void* other) = 0;
    /// Blocks until all that was launched has ended; its error, if there was one. Past the deadline it is still running.
    virtual Status wait(Deadline deadline) = 0;
};

}  // namespace sluice
