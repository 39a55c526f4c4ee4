"""An agent that is a graph of LangGraph, with two tools; it has never heard of training."""
# pyright: reportMissingImports=false

import json
import os
import re

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def multiply(a: int, b: int) -> int:
    """Use to multiply two integers."""
    return a * b


@tool
def add(a: int, b: int) -> int:
    """Use to add two integers."""
    return a + b


model = ChatOpenAI(model=os.environ["OPENAI_MODEL"]).bind_tools([multiply, add])
graph = StateGraph(MessagesState)
graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([multiply, add]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")

with open("sample.json") as file:
    sample = json.load(file)
said = graph.compile().invoke({"messages": sample["messages"]}, {"recursion_limit": 8})["messages"][-1]
print(float(sample["answer"] in re.findall(r"\d+", said.text)))
