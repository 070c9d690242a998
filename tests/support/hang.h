#pragma once

#include "runtime/services/event_loop.h"

#include <semaphore>

namespace sluice::test {

/// Keeps a loop from running once it was posted there, as a process that hangs does.
class Hang : public LoopTask {
public:
    void run() override {
        hangs.release();
        go_on.acquire();
    }
    std::binary_semaphore hangs{0};
    std::binary_semaphore go_on{0};
};

}  // namespace sluice::test
