#include "tests/support/watchdog.h"

#include <execinfo.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <signal.h>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

namespace sluice::test {
namespace {

// What the signal handler reads. Written between tests, by the thread that runs them.
char current_test[256] = "no test";
timespec test_started{};
long program_limit_s = 0;

void say(const char* text) {
    if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) {
        // Nobody reads any more; there is nothing to be done about it in a program that is about to abort.
    }
}

void print_backtrace(int /*signal*/) {
    void* frames[64];
    const int count = ::backtrace(frames, 64);
    ::backtrace_symbols_fd(frames, count, STDERR_FILENO);
}

void print_first_line(const char* path, const char* before) {
    char line[128] = {};
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    const ssize_t size = ::read(fd, line, sizeof(line) - 1);
    ::close(fd);
    if (size > 0) {
        line[std::strcspn(line, "\n")] = '\0';
        say(before);
        say(line);
    }
}

// The kernel's directory entry, as getdents64 gives it.
struct DirectoryEntry {
    std::uint64_t inode;
    std::int64_t next;
    std::uint16_t size;
    std::uint8_t type;
    char name[1];
};

void print_thread(const char* id) {
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/self/task/%.16s/comm", id);
    print_first_line(path, "thread ");
    say(":\n");
    ::syscall(SYS_tgkill, ::getpid(), std::atoi(id), SIGUSR2);
    const timespec pause{0, 100'000'000};
    ::nanosleep(&pause, nullptr);
}

void print_threads() {
    // Not opendir, which allocates: this runs in a signal handler.
    const int tasks = ::open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (tasks < 0) {
        return;
    }
    ::signal(SIGUSR2, print_backtrace);
    alignas(DirectoryEntry) char buffer[4096];
    long size = 0;
    while ((size = ::syscall(SYS_getdents64, tasks, buffer, sizeof(buffer))) > 0) {
        for (long at = 0; at < size;) {
            const auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer + at);
            if (entry->name[0] != '.') {
                print_thread(entry->name);
            }
            at += entry->size;
        }
    }
    ::close(tasks);
}

void on_alarm(int /*signal*/) {
    // The important line comes first, and should the rest hang, the next alarm kills.
    ::signal(SIGALRM, SIG_DFL);
    ::alarm(5);
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    char line[512];
    std::snprintf(line, sizeof(line), "\nwatchdog: time limit of %ld s is over in %s, which runs for %ld s\n",
                  program_limit_s, current_test, static_cast<long>(now.tv_sec - test_started.tv_sec));
    say(line);
    print_threads();
    ::signal(SIGABRT, SIG_DFL);
    std::abort();
}

void set_current(const std::string& name) {
    std::snprintf(current_test, sizeof(current_test), "%s", name.c_str());
    ::clock_gettime(CLOCK_MONOTONIC, &test_started);
}

}  // namespace

Watchdog::Watchdog(std::chrono::seconds limit) {
    program_limit_s = static_cast<long>(limit.count());
    set_current("no test");
    void* frame = nullptr;
    ::backtrace(&frame, 1);  // loads libgcc now, which the handler must not do
    struct sigaction action{};
    action.sa_handler = on_alarm;
    ::sigaction(SIGALRM, &action, nullptr);
    ::alarm(static_cast<unsigned>(limit.count()));
}

void Watchdog::OnTestStart(const testing::TestInfo& test) {
    set_current(std::string(test.test_suite_name()) + "." + test.name());
}

void Watchdog::OnTestEnd(const testing::TestInfo& test) {
    set_current(std::string("what follows ") + test.test_suite_name() + "." + test.name());
}

void Watchdog::OnTestProgramEnd(const testing::UnitTest& /*unit_test*/) { set_current("the end of the program"); }

}  // namespace sluice::test
