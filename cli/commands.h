#pragma once

#include "cli/exit_code.h"
#include "runtime/base/status.h"

#include <functional>

namespace CLI {
class App;
}

namespace sluice::cli {

/// What the program does once its arguments are parsed; returns the exit code.
using Run = std::function<ExitCode()>;

// Each adds its command to `app`. When the command line names it, `run` becomes what it does.
void add_plan_command(CLI::App& app, Run& run);
void add_sync_command(CLI::App& app, Run& run);
void add_info_command(CLI::App& app, Run& run);
void add_doctor_command(CLI::App& app, Run& run);
void add_inspect_command(CLI::App& app, Run& run);

/// What `sync` ends with when its command line is wrong: all its ranks learn of it, and one of them says so.
ExitCode refuse_sync(const Status& wrong);

}  // namespace sluice::cli
