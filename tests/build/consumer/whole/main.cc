// Uses the installed runtime: one task on an event loop.
#include "runtime/services/event_loop.h"
#include "runtime/services/log.h"

int main() {
    sluice::log::set_tag("consumer");
    bool ran = false;
    sluice::EventLoop loop("consumer");
    loop.run_and_wait([&] { ran = loop.on_loop_thread(); });
    sluice::log::info("the event loop {}", ran ? "ran" : "did not run");
    return ran ? 0 : 1;
}
