"""Sessions: agents that send their whole history with each turn, admitted while their contexts fit the backends."""
