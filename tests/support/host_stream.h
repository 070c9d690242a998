#pragma once

#include "runtime/services/device.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sluice::test {

/// What was done on the streams of a device, in order: "follow", "precede", "waited", and "run" and "quantise" as they were carried out. Any thread.
class StreamLog {
public:
    void add(std::string what);
    [[nodiscard]] std::vector<std::string> all() const;
    void launched();
    void ended();
    /// Until all that was launched has ended, also what nobody waits for any more.
    void wait_until_idle();

private:
    mutable std::mutex mutex_;
    std::condition_variable idle_;
    int under_way_ = 0;
    std::vector<std::string> all_;
};

/// A DeviceStream without a GPU: a thread that carries out in order what was launched, later than the launch, so that whoever does not wait is found out.
class HostStream final : public DeviceStream {
public:
    using Run = std::function<Status(const DeviceProgram&, const Device::Bases&)>;
    /// `before_work` is called on the stream's thread before each piece of work; what it returns fails the stream, unless it is ok.
    HostStream(Run run, std::function<Status()> before_work, StreamLog& log);
    ~HostStream() override;
    HostStream(const HostStream&) = delete;
    HostStream& operator=(const HostStream&) = delete;

    [[nodiscard]] void* handle() const override { return nullptr; }
    Status run(const DeviceProgram& program, const Device::Bases& bases) override;
    Status quantise(const BlockQuantisation& job) override;
    Status follow(void* other) override;
    Status precede(void* other) override;
    Status wait(Deadline deadline) override;

private:
    Status launch(std::function<Status()> work);
    void work_off();

    Run run_;
    std::function<Status()> before_work_;
    StreamLog& log_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<Status()>> queue_;
    bool busy_ = false;
    bool ending_ = false;
    Status status_;
    std::thread thread_;
};

}  // namespace sluice::test
