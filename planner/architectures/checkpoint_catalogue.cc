#include "planner/architectures/shapes.h"
#include "planner/near_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace sluice {

namespace {

using architectures::ConfigReader;
using architectures::TensorList;

struct Architecture {
    std::string_view name;
    void (*list)(TensorList&, ConfigReader&, WeightForm);
};

template <void (*kList)(TensorList&, ConfigReader&)>
void one_form(TensorList& list, ConfigReader& reader, WeightForm /*form*/) {
    kList(list, reader);
}

constexpr Architecture kArchitectures[] = {
    {"DeepseekV3ForCausalLM", architectures::deepseek_v3},
    {"Glm4MoeForCausalLM", architectures::glm4_moe},
    {"GptOssForCausalLM", architectures::gpt_oss},
    {"Llama4ForConditionalGeneration", one_form<architectures::llama4>},
    {"LlamaForCausalLM", one_form<architectures::llama>},
    {"MixtralForCausalLM", one_form<architectures::mixtral>},
    {"Qwen2ForCausalLM", one_form<architectures::qwen2>},
    {"Qwen3ForCausalLM", one_form<architectures::qwen3>},
    {"Qwen3MoeForCausalLM", one_form<architectures::qwen3_moe>},
};

}  // namespace

Result<Catalogue> checkpoint_catalogue(const ModelConfig& config, WeightForm form) {
    const auto* found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                     [&](const Architecture& a) { return a.name == config.architecture(); });
    if (found == std::end(kArchitectures)) {
        std::vector<std::string_view> names;
        for (const Architecture& architecture : kArchitectures) {
            names.push_back(architecture.name);
        }
        return invalid_argument(fmt::format("architecture {} is not known{}; known are {}", config.architecture(),
                                            near_names(config.architecture(), names), fmt::join(names, ", ")));
    }
    ConfigReader reader(config);
    TensorList list;
    found->list(list, reader, form);
    SLUICE_RETURN_IF_ERROR(reader.status());
    return Catalogue::create(list.take(), static_cast<int>(reader.size("num_hidden_layers")));
}

}  // namespace sluice
