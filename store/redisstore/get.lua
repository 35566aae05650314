onPrimary()
return answer()
