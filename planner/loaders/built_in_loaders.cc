#include "planner/loaders/architectures.h"

namespace sluice {

LoaderTable built_in_loaders() {
    return {{"LlamaForCausalLM", loaders::llama},      {"Qwen2ForCausalLM", loaders::qwen2},
            {"Qwen3ForCausalLM", loaders::qwen3},      {"Qwen3MoeForCausalLM", loaders::qwen3_moe},
            {"MixtralForCausalLM", loaders::mixtral},  {"DeepseekV3ForCausalLM", loaders::deepseek_v3},
            {"Glm4MoeForCausalLM", loaders::glm4_moe}, {"Llama4ForConditionalGeneration", loaders::llama4},
            {"GptOssForCausalLM", loaders::gpt_oss}};
}

}  // namespace sluice
