#pragma once

#include "runtime/services/device.h"
#include "tests/support/host_stream.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sluice::test {

/// A Device without a GPU: its memory is host memory under another name, its programs are carried out by the host's engine. What the exchange does
/// with a device can so be tested anywhere. Counts what it is asked for, refuses lanes that it does not have, and fails on demand.
class HostDevice final : public Device {
public:
    explicit HostDevice(int lanes) : lanes_(lanes) {}

    [[nodiscard]] const std::string& name() const override { return name_; }
    [[nodiscard]] const std::string& uuid() const override { return uuid_value; }
    Status use_on_this_thread() override { return ok_status(); }
    Result<Buffer> allocate(std::int64_t size) override;
    Result<Buffer> allocate_pinned(std::int64_t size) override;
    Status check_address(const std::byte* data) override;
    Result<std::unique_ptr<DeviceProgram>> compile(std::span<const DeviceCopy> copies) override;
    [[nodiscard]] int lanes() const override { return lanes_; }
    Status run(const DeviceProgram& program, const Bases& bases, int lane, std::uint64_t* digest) override;
    Result<std::uint64_t> hash(const DeviceProgram& program, const Bases& bases, Side side, int lane) override;
    Status hash_all(std::span<const DeviceProgram* const> programs, const Bases& bases, Side side, int lane,
                    std::span<std::uint64_t> digests) override;
    Status copy(std::byte* to, const std::byte* from, std::size_t size, int lane) override;
    Status fill(std::byte* to, std::byte value, std::size_t size, int lane) override;
    Result<std::unique_ptr<DeviceProgram>> compile_values(std::span<const DeviceValues> values) override;
    Status fill_values(const DeviceProgram& program, std::int64_t version, int lane) override;
    Result<std::uint64_t> count_other_values(const DeviceProgram& program, std::int64_t version, int lane) override;
    Result<bool> event_reached(void* event) override;
    Result<std::unique_ptr<DeviceStream>> make_stream() override;
    Result<std::vector<std::byte>> share(const std::byte* data) override;
    Result<Buffer> map(std::span<const std::byte> handle, std::int64_t size) override;

    /// Called by compile() and by map(); what they return is what the call returns, unless it is ok.
    std::function<Status()> before_compile = [] { return ok_status(); };
    std::function<Status()> before_map = [] { return ok_status(); };
    /// Called before each run and hash; what it returns is what they return, unless it is ok. Any thread.
    std::function<Status()> before_run = [] { return ok_status(); };
    /// Called before each piece of work on a stream, on the stream's own thread; what it returns fails the stream.
    std::function<Status()> before_stream_work = [] { return ok_status(); };
    /// By default all imitations are of one GPU. Before the session is set up.
    std::string uuid_value = "imitated";
    /// False: share() refuses, as with memory that CUDA IPC cannot export.
    bool shareable = true;
    /// Runs and hashes: each waits for the device once.
    [[nodiscard]] std::int64_t waits() const { return waits_; }
    /// What event_reached() says.
    std::atomic<bool> events_reached = true;
    /// What it was called with, repeats left out.
    [[nodiscard]] const std::vector<void*>& events() const { return events_; }
    [[nodiscard]] StreamLog& stream_log() { return stream_log_; }
    /// Sum of all sizes that allocate() was asked for.
    [[nodiscard]] std::int64_t allocated() const { return allocated_; }

private:
    Status before_work(int lane);

    int lanes_;
    std::string name_ = "0: a host's imitation";
    std::atomic<std::int64_t> waits_ = 0;
    std::vector<void*> events_;
    StreamLog stream_log_;
    std::atomic<std::int64_t> allocated_ = 0;
};

}  // namespace sluice::test
