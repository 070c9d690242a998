#include "tests/support/host_stream.h"

#include <utility>

namespace sluice::test {

void StreamLog::add(std::string what) {
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(what));
}

std::vector<std::string> StreamLog::all() const {
    const std::lock_guard lock(mutex_);
    return all_;
}

void StreamLog::launched() {
    const std::lock_guard lock(mutex_);
    ++under_way_;
}

void StreamLog::ended() {
    const std::lock_guard lock(mutex_);
    if (--under_way_ == 0) {
        idle_.notify_all();
    }
}

void StreamLog::wait_until_idle() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return under_way_ == 0; });
}

HostStream::HostStream(Run run, std::function<Status()> before_work, StreamLog& log)
    : run_(std::move(run)), before_work_(std::move(before_work)), log_(log), thread_([this] { work_off(); }) {}

HostStream::~HostStream() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void HostStream::work_off() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
        if (queue_.empty()) {
            return;
        }
        const std::function<Status()> work = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
        lock.unlock();
        Status status = before_work_();
        if (status.ok()) {
            status = work();
        }
        log_.ended();
        lock.lock();
        busy_ = false;
        if (status_.ok()) {
            status_ = status;
        }
        changed_.notify_all();
    }
}

Status HostStream::launch(std::function<Status()> work) {
    log_.launched();
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(work));
    }
    changed_.notify_all();
    return ok_status();
}

Status HostStream::run(const DeviceProgram& program, const Device::Bases& bases) {
    return launch([this, &program, bases] {
        log_.add("run");
        return run_(program, bases);
    });
}

Status HostStream::quantise(const BlockQuantisation& job) {
    return launch([this, job] {
        log_.add("quantise");
        quantise_blocks(job);
        return ok_status();
    });
}

Status HostStream::follow(void* /*other*/) {
    log_.add("follow");
    return ok_status();
}

Status HostStream::precede(void* /*other*/) {
    log_.add("precede");
    return ok_status();
}

Status HostStream::wait(Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline.when(), [this] { return queue_.empty() && !busy_; })) {
        return deadline_exceeded("the imitated stream has not ended in time");
    }
    log_.add("waited");
    return std::exchange(status_, ok_status());
}

}  // namespace sluice::test
