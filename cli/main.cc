#include "cli/commands.h"

#include <CLI/CLI.hpp>

#include <iostream>
#include <string>
#include <string_view>

int main(int argc, char** argv) {
    CLI::App app("Moves the weights of a model in training to the inference workers that generate with it.", "sluice");
    app.require_subcommand(1);
    sluice::cli::Run run;
    sluice::cli::add_plan_command(app, run);
    sluice::cli::add_sync_command(app, run);
    sluice::cli::add_info_command(app, run);
    sluice::cli::add_doctor_command(app, run);
    sluice::cli::add_inspect_command(app, run);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {  // --help
            return app.exit(error, std::cout, std::cerr) == 0 ? sluice::cli::kDone : sluice::cli::kBadInput;
        }
        const sluice::Status wrong = sluice::invalid_argument(std::string(error.what()) + "; see --help");
        return argc > 1 && std::string_view(argv[1]) == "sync" ? sluice::cli::refuse_sync(wrong)
                                                               : sluice::cli::report(wrong);
    }
    return run();
}
